"""Heavy work of a light command: it becomes another process, which imports torch."""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn


def exec_module(module: str, arguments: Mapping[str, Any]) -> NoReturn:
    """Replace this process by `python -m MODULE JSON`, where JSON holds `arguments`.

    The terminal, the signals and the exit code are then the module's own; its main function goes through
    `errors.run_main`. Under `--debug` it finds NEOX_DEBUG=1 in its environment.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, json.dumps(arguments)])
