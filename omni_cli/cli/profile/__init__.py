"""`omni profile`."""
