"""`omni bisect`."""
