"""Tables of tiles: what is read, what is refused, and which goes before which."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve, field, frozen
from neox_gpt.architecture import GPTArchitecture
from neox_kernels.choose import use_kernels
from neox_kernels.tiles import Row, Tile, Tiled, own_digest, read_table, tiles_for, width_of, write_table

from neox_core.errors import ConfigError
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import ComponentRef, KernelPlan

ROW = Row("p:square.triton", "sm_90", 4096, "bf16", 512, 4, 0, "NVIDIA H200, torch 2.13.0")
HEAD = "kernel,architecture,width,dtype,block,warps,stages,by\n"
LINE = "p:square.triton,sm_90,4096,bf16,512,4,0,me\n"


def square(x: torch.Tensor) -> torch.Tensor:
    return x.square()


@frozen
class Square(Tiled):
    """A kernel of three tiles."""

    tiles: Path
    used: dict[tuple[str, int], Tile] = field(factory=dict)
    tested: frozenset[str] = frozenset()

    def why_not(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[str, ...]:
        return ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.square()

    def examples(self, dtype: torch.dtype, device: torch.device, *, large: bool) -> Iterable[tuple[Any, ...]]:
        return ()

    def candidates(self, width: int) -> Sequence[Tile]:
        return Tile(), Tile(512, 4), Tile(256, 2)

    def use_tiles(self, tiles: Mapping[tuple[str, int], Tile]) -> None:
        self.used.update(tiles)

    def tuning_examples(self, dtype: torch.dtype, device: torch.device) -> Iterable[tuple[Any, ...]]:
        return ()


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tiles.csv"
    other, faster = evolve(ROW, dtype="fp32"), evolve(ROW, block=256, by="another, later")
    write_table(path, [ROW, other])
    assert set(read_table(path)) == {ROW, other}
    write_table(path, [faster])
    assert set(read_table(path)) == {faster, other}
    assert [each.name for each in path.parent.iterdir()] == ["tiles.csv"]


@pytest.mark.parametrize(("shape", "width"), [((3, 1), 1), ((64,), 64), ((2, 65), 128), ((5, 4096), 4096)])
def test_widths_are_powers_of_two(shape: tuple[int, ...], width: int) -> None:
    assert width_of(shape) == width


def test_the_users_table_goes_before_the_plugins(tmp_path: Path) -> None:
    kernel, own = Square(tmp_path / "plugin.csv"), tmp_path / "own.csv"
    assert tiles_for(kernel, ROW.kernel, "sm_90", own) == {}
    write_table(kernel.tiles, [ROW, evolve(ROW, dtype="fp32"), evolve(ROW, architecture="sm_80", width=128)])
    write_table(own, [evolve(ROW, block=256, warps=2), evolve(ROW, kernel="p:cube.triton", block=1024)])
    found = tiles_for(kernel, ROW.kernel, "sm_90", own)
    assert found == {("bf16", 4096): Tile(256, 2), ("fp32", 4096): Tile(512, 4)}


def test_a_tile_that_the_kernel_does_not_offer_is_refused(tmp_path: Path) -> None:
    kernel, own = Square(tmp_path / "plugin.csv"), tmp_path / "own.csv"
    write_table(own, [evolve(ROW, block=8192)])
    with pytest.raises(ConfigError, match=r"own\.csv.*square\.triton does not accept Tile\(block=8192") as caught:
        tiles_for(kernel, ROW.kernel, "sm_90", own)
    assert caught.value.hint == "remove it, or neox kernels tune square"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1 is not kernel,architecture"),
        ("kernel,block\n", "line 1 is not kernel,architecture"),
        (HEAD + "a,b\n", "line 2 does not have 8 values"),
        (HEAD + LINE + LINE, "line 3 has the key of an earlier"),
        (HEAD + LINE.replace("512", "500"), "line 2: block '500' is not 0 or a power of two"),
        (HEAD + LINE.replace("512", "1048576"), "line 2: block '1048576' is not"),
        (HEAD + LINE.replace("512", "-16"), "line 2: block '-16' is not"),
        (HEAD + LINE.replace("512", "9" * 5000), "line 2: block '9+.* more characters"),
        (HEAD + LINE.replace("512", "5_12"), "line 2: block '5_12' is not"),
        (HEAD + LINE.replace(",4,0,", ",32,0,"), "line 2: warps '32' is not"),
        (HEAD + LINE.replace(",4,0,", ",4,99,"), "line 2: stages '99' is not"),
        (HEAD + LINE.replace("4096", "4095"), "line 2: width '4095' is not a power of two"),
        (HEAD + LINE.replace("bf16", "int8"), "line 2: dtype 'int8' is not one of fp32"),
        (HEAD + LINE.replace("me", "\x1b[2J"), r"line 2: by '\\x1b\[2J' is not"),
        (HEAD + LINE.replace("me", "m" * 201), "line 2: by 'm+.* is not at most 200"),
        (HEAD + LINE.replace("p:", "../"), "line 2: kernel '../square.triton' is not"),
        (HEAD + LINE.replace("me", '"me'), "unexpected end of data"),
        (HEAD + LINE.replace("me", "\udcff"), "can't decode|not in range"),
        (HEAD + LINE * 100_000, "is larger than 1 MiB"),
    ],
)
def test_what_is_not_a_table_is_an_error_that_names_the_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "tiles.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=said) as caught:
        read_table(path)
    assert str(path) in caught.value.message
    assert len(caught.value.message) < 400 + len(str(path))


SQUARE = Square(Path("none.csv"))


def test_a_run_is_given_its_tiles_once_and_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_table(tmp_path / "neox" / "tiles.csv", [evolve(ROW, kernel="p:square.SQUARE", architecture="cpu")])
    module = sys.modules.get(__name__) or type(sys)(__name__)
    monkeypatch.setattr(module, "SQUARE", SQUARE, raising=False)
    monkeypatch.setitem(sys.modules, __name__, module)
    offer = ComponentRef("kernel", "square.SQUARE", "p", "1", f"{__name__}:SQUARE")
    kernels = (KernelPlan("square", "fused", "square_fusion", (offer,), f"{__name__}:square"),)
    monkeypatch.setattr(module, "square", square, raising=False)
    numbers = SimpleNamespace(kernels=kernels, num_attention_heads=1, seq_length=7, hidden_size=4, intermediate_size=4)
    context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)
    model = torch.nn.Linear(1, 1)
    (line,) = use_kernels(
        model, GPTArchitecture(numbers), numbers.kernels, context, torch.float32, tmp_path / "kernels.json"
    )
    assert line == "kernel of square: square.SQUARE, 1 of its tiles by table"
    assert SQUARE.used == {("bf16", 4096): Tile(512, 4)}
    assert json.loads((tmp_path / "kernels.json").read_text())["square"]["tiles"] == {"bf16 4096": [512, 4, 0]}


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tiles.csv")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_table(tmp_path / "tiles.csv")


def test_ranks_compare_what_they_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert own_digest() == "none"
    write_table(tmp_path / "neox" / "tiles.csv", [ROW])
    first = own_digest()
    write_table(tmp_path / "neox" / "tiles.csv", [evolve(ROW, warps=2)])
    assert len({first, own_digest(), "none"}) == 3
