"""Send output of later imports to stderr, because the command's stdout is for data."""

import os

os.dup2(2, 1)
