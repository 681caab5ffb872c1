"""Workarounds for one version or build of a dependency, each in its own module with the reason."""
