"""Measurements: workloads, variants in separate processes, and their schedule. Imports no torch."""
