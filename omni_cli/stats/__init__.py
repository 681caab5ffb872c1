"""From records to verdicts, with NumPy only; runs and prints nothing.

Read top-down: `verdicts` (records), `compare` (two variants), `blocks` (pairs), `estimate` (an interval), `gate`.
"""
