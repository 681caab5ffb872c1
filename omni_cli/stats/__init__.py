"""From records to estimates, comparisons and verdicts. NumPy only; nothing here runs or prints anything."""
