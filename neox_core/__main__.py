"""`python -m neox_core` is `neox`."""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the current folder, which the console script does not look into either

from neox_core.cli.main import main

main()
