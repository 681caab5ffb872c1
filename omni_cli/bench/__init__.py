"""Measuring: workloads, variants in processes of their own, and who runs when. The command's process needs no torch."""
