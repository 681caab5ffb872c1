"""The command line: parse, call, render, exit; one file a command."""
