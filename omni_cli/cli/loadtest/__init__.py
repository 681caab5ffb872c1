"""Load tests of a server."""
