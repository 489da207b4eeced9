"""The choice among tiles: by given times, on kernels that are right in some of them."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from neox_kernels.tiles import Row, Tile
from neox_kernels.tune import fastest, tuned
from torch import Tensor

from neox_core.plan.runfile import ComponentRef

OWN, SMALL, LARGE = Tile(), Tile(256, 2), Tile(1024, 8)


@pytest.mark.parametrize(
    ("timings", "best"),
    [
        ({OWN: [3.0], SMALL: [1.0], LARGE: [2.0]}, SMALL),
        ({OWN: [1.0], SMALL: [2.0]}, OWN),
        ({OWN: [1.0], SMALL: [0.99]}, OWN),  # which is noise
        ({OWN: [1.0], SMALL: [0.97]}, SMALL),
        ({OWN: [1.0, 1.0, 1.0], SMALL: [0.1, 1.1, 1.1]}, OWN),  # one time that is fast by chance
        ({OWN: [1.0, 1.0, 9.0], SMALL: [0.9, 0.9, 90.0]}, SMALL),
        ({OWN: [1.0], SMALL: [0.5], LARGE: [0.5]}, SMALL),
        ({OWN: [0.0]}, OWN),
    ],
)
def test_the_fastest_is_that_of_the_least_median(timings: Mapping[Tile, Sequence[float]], best: Tile) -> None:
    assert fastest(timings) == best


def reference(x: Tensor) -> Tensor:
    return x.square()


class Square:
    """Wrong in tiles of 512, not compiled in those of 2048."""

    tested: frozenset[str] = frozenset()
    tiles = Path("none.csv")

    def __init__(self) -> None:
        self.tile = OWN
        self.given: list[Any] = []

    def why_not(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[str, ...]:
        return ("too wide",) if shape[-1] > 100 else ()

    def __call__(self, x: Tensor) -> Tensor:
        if self.tile.block == 2048:
            raise RuntimeError("out of resources: shared memory\nmore")
        return x.square() * (1.5 if self.tile.block == 512 else 1.0)

    def examples(self, dtype: torch.dtype, device: torch.device, *, large: bool) -> Iterator[tuple[Any, ...]]:
        yield (torch.linspace(-1, 1, 7, device=device).to(dtype).requires_grad_(),)

    def candidates(self, width: int) -> Sequence[Tile]:
        return OWN, SMALL, Tile(512, 2), Tile(2048, 2), LARGE

    def use_tiles(self, tiles: Mapping[tuple[str, int], Tile]) -> None:
        self.given.append(dict(tiles))
        self.tile = next(iter(tiles.values()), OWN)

    def tuning_examples(self, dtype: torch.dtype, device: torch.device) -> Iterable[tuple[Any, ...]]:
        return [(torch.linspace(-1, 1, width).to(dtype).requires_grad_(),) for width in (7, 64, 200)]


SQUARE = Square()
PLAIN = type("Plain", (), {each: getattr(Square, each) for each in ("tested", "why_not", "examples", "__call__")})()


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules.get(__name__) or type(sys)(__name__)
    for name in ("SQUARE", "PLAIN", "reference"):
        setattr(module, name, globals()[name])
    monkeypatch.setitem(sys.modules, __name__, module)


def test_a_tile_is_right_before_it_is_measured_and_the_fastest_is_a_row() -> None:
    measured = []

    def times(kernel: Any, arguments: Sequence[Any]) -> list[float]:
        measured.append((arguments[0].shape[0], kernel.tile))
        return [{OWN: 3e-3, SMALL: 2e-3, LARGE: 1e-3 if arguments[0].shape[0] == 64 else 2.5e-3}[kernel.tile]]

    offers = [ComponentRef("kernel", f"square.{name}", "p", "1", f"{__name__}:{name}") for name in ("SQUARE", "PLAIN")]
    row = {"op": "square", "reference": f"{__name__}:reference", "offers": [each.plain() for each in offers]}
    found = list(tuned([row], torch.device("cpu"), torch.float32, "me", times))
    assert [each for each, _ in found if each is not None] == [
        Row("p:square.SQUARE", "cpu", 8, "fp32", 256, 2, 0, "me"),
        Row("p:square.SQUARE", "cpu", 64, "fp32", 1024, 8, 0, "me"),
    ]
    assert measured == [(width, tile) for width in (7, 64) for tile in (OWN, SMALL, LARGE)]
    assert SQUARE.given[-1] == {}
    lines = [line for _, line in found]
    wrong, broken, first, *_, wide, plain = lines
    assert wrong.startswith("square.SQUARE fp32 width 8: not block 512, warps 2: WRONG: off by 5.0e-01 of 1e-05 in ")
    assert broken.endswith("not block 2048, warps 2: RuntimeError: out of resources: shared memory")
    assert first == "square.SQUARE fp32 width 8: block 256, warps 2, 2.000 ms, of 3 tried; by itself 3.000 ms"
    assert wide == "square.SQUARE fp32 width 256: cannot run: too wide"
    assert plain == "square.PLAIN: has no tiles to choose from"


def test_a_machine_without_a_gpu_is_told_so(tmp_path: Path) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "neox_core", "kernels", "tune"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "tiles are measured on a GPU, and there is none here that torch can use" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "neox" / "tiles.csv").exists()
