"""Builder of Qwen3-Omni checkpoints. Nothing else belongs here: a change to these files rebuilds cached folders."""
