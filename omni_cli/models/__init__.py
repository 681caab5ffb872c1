"""Model families. Importing this imports nothing."""
