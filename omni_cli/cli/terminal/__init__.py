"""The terminal: messages, progress and interrupts."""
