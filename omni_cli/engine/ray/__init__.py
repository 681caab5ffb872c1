"""Ray for replicas and for a stage's ranks: join a cluster, or start one that leaves nothing behind."""
