"""Errors, text, files, processes and the machine: imports nothing else of the package."""
