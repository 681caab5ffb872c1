"""Decoders of images, audio and video that nobody vouches for."""
