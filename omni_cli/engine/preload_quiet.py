"""`preload` with what the imports print thrown away; stages open logs of their own, and repeat a failed import."""

import os

_null = os.open(os.devnull, os.O_WRONLY)
os.dup2(_null, 1)
os.dup2(_null, 2)
os.close(_null)

import omni_cli.engine.preload  # noqa: E402, F401
