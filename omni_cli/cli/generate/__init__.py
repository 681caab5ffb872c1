"""`omni generate`."""
