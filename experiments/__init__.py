"""Experiments: what the library's claims rest on. They use public names only."""
