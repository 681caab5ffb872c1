"""The protocol of a stage: its interface, the messages to and from its process, and the payloads between stages."""
