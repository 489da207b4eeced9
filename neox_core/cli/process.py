"""Heavy work of a light command: replaces this process by one that imports torch."""

import json
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, NoReturn

from neox_core.errors import in_words, report
from neox_core.hooks.blame import blame
from neox_core.interpreter import python, require_room
from neox_core.plan.runfile import RunPlan, to_json

_NUMPY_MIB = 160


def exec_module(module: str, arguments: Mapping[str, Any], plan: RunPlan | None = None) -> NoReturn:
    """Replace this process by one that runs MODULE as `python -m MODULE JSON`, where JSON holds `arguments`.

    They pass in an open file without a name, since a word of a command line has at most 128 KiB. plan: becomes the
    argument `plan`, which `receive_plan` reads. The module then owns the terminal, the signals and the exit code; its
    main function goes through `errors.run_main`, which names the plugin whose code raised an exception. With `--debug`
    its environment has NEOX_DEBUG=1.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if plan is not None:
        arguments = {**arguments, "plan": json.loads(to_json(plan))}
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(arguments).encode())
        file.seek(0)
        os.set_inheritable(file.fileno(), True)
        argv = python(__name__, module, str(file.fileno()))
        os.execv(argv[0], argv)


def main() -> None:
    """Run the module that the command line names; an error ends the process with its exit code."""
    module = sys.argv.pop(1)
    try:
        require_room(_NUMPY_MIB)
        with os.fdopen(int(sys.argv[1])) as file:
            sys.argv[1] = file.read()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:  # during imports: `errors.run_main` answers it later
        sys.exit(130)
    except Exception as error:
        blamed = in_words(error) or blame(error, module)
        if blamed is None:
            raise
        sys.exit(report(blamed, error))


if __name__ == "__main__":
    main()
