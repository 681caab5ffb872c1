"""Checks whether a profile, a model or a running server gives the reference's outputs. Imports no torch."""
