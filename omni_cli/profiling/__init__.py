"""Where a workload's time and memory go: recording sessions, and what their traces say."""
