"""Send output of later imports to stderr: the command's stdout is for its data alone."""

import os

os.dup2(2, 1)
