"""The processes of an engine: the fork server, a process per stage and its client, and the watchdog."""
