"""The built-in CSM checkpoint."""
