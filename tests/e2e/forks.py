"""Processes that need not import anything again."""

import os
import sys
import traceback
from collections.abc import Callable


def forked(act: Callable[[], object]) -> int:
    """The id of a process that calls `act` and ends with 0, or shows what it raised and ends with 1."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        act()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
