"""One file an endpoint: its request in, the engine's events out in the shape that clients expect."""
