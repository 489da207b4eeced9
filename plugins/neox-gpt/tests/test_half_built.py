"""What a killed compilation leaves in torch's cache: removed, and built again by the next run."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from neox_gpt.half_built import remove_in

COMPILE = """
import torch
from neox_gpt.half_built import remove_half_built
remove_half_built()
print(torch.compile(lambda x: (x.sin() + 1).cos())(torch.zeros(8))[0].item())
"""


def half_built(cache: Path, name: str) -> Path:
    library = cache / "ab" / f"{name}.main.so"
    (library.parent / f"{name}.main_CxxBuild").mkdir(parents=True)
    library.touch()
    (cache / "locks").mkdir(exist_ok=True)
    return library


def test_what_nobody_builds_goes(tmp_path: Path) -> None:
    killed, building, whole = (
        half_built(tmp_path, "ckilled"),
        half_built(tmp_path, "cbuilding"),
        tmp_path / "ab/cw.main.so",
    )
    whole.touch()
    with (tmp_path / "locks/cbuilding.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        remove_in(tmp_path)
    assert not killed.exists()
    assert building.exists()
    assert whole.exists()
    assert [path.name for path in (tmp_path / "ab").glob("*_CxxBuild")] == ["cbuilding.main_CxxBuild"]


def test_a_run_after_one_that_was_killed_compiles_again(tmp_path: Path) -> None:
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}

    def compiled() -> str:
        return subprocess.run(
            [sys.executable, "-c", COMPILE], env=environment, check=True, capture_output=True, text=True
        ).stdout

    first = compiled()
    (library,) = tmp_path.glob("*/*.main.so")
    library.write_bytes(b"")
    library.with_name(library.name.removesuffix(".so") + "_CxxBuild").mkdir()
    assert compiled() == first
    assert library.stat().st_size
