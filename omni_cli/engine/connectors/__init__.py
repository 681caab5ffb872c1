"""What one stage's output becomes as the next stage's input: pure functions of tensors."""
