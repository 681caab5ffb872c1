"""From records to estimates, comparisons and verdicts. Imports NumPy only; runs and prints nothing."""
