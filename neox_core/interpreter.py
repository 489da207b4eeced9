"""How Python processes are started: none of them looks for its imports in the current folder."""

import sys

_WITHOUT_FOLDER = (
    "import sys; del sys.path[0]; import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def python(module: str, *arguments: str, safe_path: bool = sys.version_info >= (3, 11)) -> tuple[str, ...]:
    """The command that runs `python -m module arguments`, for a process that may be started in any folder.

    `-m` alone would look for imports in the current folder first, and a `torch.py` that lies there would be run.

    safe_path: whether this Python has the option -P, which its own children take over; else a line of code does it.
    """
    if safe_path:
        return (sys.executable, "-P", "-m", module, *arguments)
    return (sys.executable, "-c", _WITHOUT_FOLDER, module, *arguments)
