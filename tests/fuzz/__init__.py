"""Mutated inputs for the doors that take bytes from outside; `python -m fuzz` from this folder's parent runs many.

Each module has `cases(rng)`, an endless source of inputs, and `check(case)`, which returns how one ended ("accepted" or
"rejected") and raises for every other end.
"""
