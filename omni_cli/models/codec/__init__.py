"""Parts that several model families share: codec decoders that stream."""
