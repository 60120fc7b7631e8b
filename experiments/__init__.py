"""Experiments: the evidence behind the library's claims, listed in README.md.

They use the library's public names only.
"""
