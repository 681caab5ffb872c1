"""Models that vLLM lacks, builders of small checkpoints, and where checkpoints are. Importing this imports nothing."""
