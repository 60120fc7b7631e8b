"""Pictures and reports; slow imports, so import from here inside functions."""
