"""The command line: parse, call, render, exit; one file or folder per command."""
