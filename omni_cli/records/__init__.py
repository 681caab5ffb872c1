"""Records on disk: their structure, metrics, files and imports from other tools."""
