"""What `omni profile` records, inside a stage's own process."""
