"""`omni bench`."""
