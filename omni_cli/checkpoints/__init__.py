"""Locate a model's files: built here, in a folder, or on the hub. Importing this imports nothing heavy."""
