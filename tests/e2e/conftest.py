"""Scripts of this folder that make ranks, in a process of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def start() -> Callable[[str, Path, Any], None]:
    """`start(script, out, cases)`: what the script says must go with an exit code of 0."""

    def start(script: str, out: Path, cases: Any) -> None:
        argv = [sys.executable, str(Path(__file__).with_name(script)), str(out), json.dumps(cases)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(argv, env=env, stderr=subprocess.PIPE, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stderr[-4000:]

    return start
