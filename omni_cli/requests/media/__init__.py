"""Decoders of untrusted images, audio and video."""
