"""Records to text and JSON. Never computes, never runs anything."""
