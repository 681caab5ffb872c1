"""What runs inside a stage's process: one module a kind of stage, all with the interface of `base.Stage`."""
