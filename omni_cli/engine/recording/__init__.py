"""Recording for `omni profile`, inside a stage's process."""
