"""Profile a workload: recording sessions and the analysis of their traces."""
