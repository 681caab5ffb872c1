"""The built-in Higgs Audio v2 checkpoint."""
