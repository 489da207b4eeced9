"""Who sees whom in each layer: `neox config show --attention`, in the terminal or as a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from cattrs.preconf.json import make_converter

from neox_core.errors import ConfigError, run_main
from neox_core.terminal import echo
from neox_gpt.attention.layout_tables import draw_layout
from neox_gpt.config.plan import SOFTMAX_ATTENTION, GPTPlan

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.plan.runfile import ComponentRef

CELLS = 48
"""Columns of a drawing; a longer sequence is drawn with several blocks in one cell."""
_SHADES = " ░▒▓█"


@frozen(eq=False)
class Drawing:
    """One layout and who has it. seen: bool [query blocks, key blocks]; block: in tokens."""

    layers: list[int]
    heads: list[int]
    name: str
    block: int
    seen: Tensor

    @property
    def density(self) -> float:
        """Share of the blocks that a layer which sees everything before it would compute."""
        blocks: int = self.seen.shape[0]
        return float(self.seen.sum()) / (blocks * (blocks + 1) / 2)

    @property
    def title(self) -> str:
        """What stands above the picture."""
        return (
            f"{_numbers('layer', self.layers)}, {_numbers('head', self.heads)}: {self.name}, "
            f"{self.seen.shape[0]} blocks of {self.block} tokens, {self.density:.1%} of what is before"
        )


def drawings(plan: GPTPlan, seed: int) -> list[Drawing]:
    """The different layouts of the sparse layers, in the order of their first layer and head."""
    found: list[Drawing] = []
    for layer, place in enumerate(plan.layout_of_layer):
        if place is None:
            continue
        layout, block = draw_layout(plan, layer, seed)
        mine: list[Drawing] = []
        for head, seen in enumerate(layout):
            same = next((each for each in mine if torch.equal(each.seen, seen)), None)
            if same is None:
                mine.append(Drawing([layer], [head], plan.layouts[place].name, block, seen))
            else:
                same.heads.append(head)
        for each in mine:
            like = (one for one in found if one.name == each.name and one.heads == each.heads)
            same = next((one for one in like if torch.equal(one.seen, each.seen)), None)
            if same is None:
                found.append(each)
            else:
                same.layers.append(layer)
    return found


def in_text(drawing: Drawing) -> Iterator[str]:
    """A row of the layout a line, darker where more of a cell's blocks are seen."""
    yield drawing.title
    per_cell = -(-drawing.seen.shape[0] // CELLS)
    padding = -drawing.seen.shape[0] % per_cell
    share = torch.nn.functional.pad(drawing.seen.float(), (0, padding, 0, padding))
    share = torch.nn.functional.avg_pool2d(share[None], per_cell, ceil_mode=True)[0]
    levels = (share * (len(_SHADES) - 1)).ceil().int().tolist()
    yield from ("  " + "".join(_SHADES[level] * 2 for level in row).rstrip() for row in levels)


def write_picture(found: list[Drawing], path: Path) -> None:
    """PNG, SVG or PDF, by the ending. Raises ConfigError without matplotlib, or for an ending that it does not know."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("a picture needs matplotlib", hint="pip install matplotlib") from error
    figure = Figure(figsize=(5, 5 * len(found)), layout="constrained")
    for axes, each in zip(figure.subplots(len(found), squeeze=False)[:, 0], found, strict=True):
        axes.imshow(each.seen.numpy(), cmap="Greys", interpolation="nearest", vmin=0, vmax=1)
        axes.set_title(each.title, fontsize=7)
        axes.set_xlabel("block of keys")
        axes.set_ylabel("block of queries")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot write the picture: {error}", hint="such as attention.png or .svg") from error


def main() -> None:
    """`python -m neox_gpt.attention.draw_layouts JSON`: the model's plan, seed, and out: a file, or null."""
    raw: dict[str, Any] = json.loads(sys.argv[1])
    plan = make_converter().structure(raw["model"], GPTPlan)
    found = drawings(plan, raw["seed"])
    softmax = [at for at in range(plan.num_layers) if _mixer(plan, at).identity == SOFTMAX_ATTENTION.identity]
    dense = [at for at in softmax if not plan.layout_of_layer or plan.layout_of_layer[at] is None]
    lines = [line for each in found for line in (*in_text(each), "")]
    windows = plan.windows or (None,) * plan.num_layers
    for width in dict.fromkeys(windows[at] for at in dense):
        mine = [at for at in dense if windows[at] == width]
        seen = "everything before" if width is None else f"{width} tokens before"
        lines.append(f"{_numbers('layer', mine)}: {seen}")
    nope = [at for at in dense if plan.positions_of_layer and not plan.positions_of_layer[at]]
    if nope:
        lines.append(f"{_numbers('layer', nope)}: no positions")
    for other in dict.fromkeys(_mixer(plan, at).name for at in range(plan.num_layers) if at not in softmax):
        mine = [at for at in range(plan.num_layers) if at not in softmax and _mixer(plan, at).name == other]
        lines.append(f"{_numbers('layer', mine)}: the mixer {other}")
    echo("\n".join(lines).rstrip())
    if raw["out"] is not None and found:
        write_picture(found, Path(raw["out"]))


def _mixer(plan: GPTPlan, layer: int) -> ComponentRef:
    return (plan.mixers or (SOFTMAX_ATTENTION,))[plan.place_of_mixer(layer)]


def _numbers(what: str, numbers: list[int]) -> str:
    """`layers 0-3, 6`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"{what}{'s' if len(numbers) > 1 else ''} {text}"


if __name__ == "__main__":
    run_main(main)
