"""Where a model's files are: built here, in a folder, or on the hub. Importing this imports nothing heavy."""
