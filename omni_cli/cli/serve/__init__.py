"""`omni serve`."""
