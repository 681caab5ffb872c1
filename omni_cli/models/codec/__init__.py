"""Parts of families with a codec: code predictors, and decoders that stream."""
