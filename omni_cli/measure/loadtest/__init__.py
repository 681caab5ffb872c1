"""Benchmarks of a running OpenAI-compatible server: a variant is a server, a run is a window of requests to it."""
