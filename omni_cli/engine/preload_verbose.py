"""`preload` with what the imports print on stderr: the command's stdout is for its data alone."""

import os

os.dup2(2, 1)

import omni_cli.engine.preload  # noqa: E402, F401
