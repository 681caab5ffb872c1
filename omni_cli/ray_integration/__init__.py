"""Ray, for replicas and for a stage's ranks: joining a cluster, or starting one that leaves nothing behind."""
