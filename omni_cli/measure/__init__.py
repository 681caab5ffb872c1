"""Benchmarks, load tests, verification, profiles and the machine's capabilities."""
