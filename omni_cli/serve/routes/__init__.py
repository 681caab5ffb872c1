"""One file per endpoint: converts its request, and the engine's events to OpenAI's responses."""
