"""`omni tune`."""
