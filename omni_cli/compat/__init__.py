"""Work-arounds for one version or build of a dependency, each in a module of its own with the reason."""
