"""Lets what the imports after it print go to stderr: the command's stdout is for its data alone."""

import os

os.dup2(2, 1)
