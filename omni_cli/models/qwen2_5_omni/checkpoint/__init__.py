"""Builder of Qwen2.5-Omni checkpoints. Nothing else belongs here: a change to these files rebuilds cached folders."""
