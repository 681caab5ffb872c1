"""Discard output of later imports; stages open their own logs, and repeat a failed import."""

import os

_null = os.open(os.devnull, os.O_WRONLY)
os.dup2(_null, 1)
os.dup2(_null, 2)
os.close(_null)
