"""The files of a GPT-NeoX checkpoint, by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from neox_core.errors import CheckpointError

LATEST = "latest"
_STEP = re.compile(r"global_step(\d{1,18})")
_LAYER = re.compile(r"layer_(\d{2,5})-model_(\d{2,5})-model_states\.pt")
_RANK = re.compile(r"mp_rank_(\d{2,5})_model_states\.pt")
_ZERO = re.compile(r"(bf16_)?zero_pp_rank_(\d{1,6})_mp_rank_(\d{2,5})_?optim_states\.pt")
_UNIVERSAL = ("universal_checkpoint_info.json", "zero")


@frozen
class NeoXFolder:
    """One checkpoint. layers: by number of the layer and tensor rank; none of a model that is not a pipeline's. ranks:
    by model rank, which counts stages and within each tensor ranks. zero: by model rank and data rank.
    """

    path: Path
    layers: Mapping[tuple[int, int], Path]
    ranks: Mapping[int, Path]
    zero: Mapping[tuple[int, int], Path]

    @property
    def configs(self) -> list[Path]:
        """The files of the run that GPT-NeoX kept beside the tensors."""
        return sorted(each for each in (self.path / "configs").glob("*") if each.is_file())

    @property
    def data_ranks(self) -> int:
        """Number of ranks among which ZeRO divides a flat group; 0: there is no ZeRO."""
        return 1 + max((data for _, data in self.zero), default=-1)

    def require_whole(self) -> None:
        """Raises CheckpointError, naming the first file that is missing."""
        tensor_ranks = sorted({tensor for _, tensor in self.layers})
        wanted = [f"mp_rank_{rank:02d}_model_states.pt" for rank in range(1 + max(self.ranks, default=0))]
        for layer in sorted({number for number, _ in self.layers}):
            wanted += [f"layer_{layer:02d}-model_{rank:02d}-model_states.pt" for rank in range(1 + tensor_ranks[-1])]
        prefix = "bf16_" if any(each.name.startswith("bf16_") for each in self.zero.values()) else ""
        for rank in self.ranks if self.zero else ():
            for data in range(self.data_ranks):
                if (rank, data) not in self.zero:
                    wanted.append(f"{prefix}zero_pp_rank_{data}_mp_rank_{rank:02d}_optim_states.pt")
        for name in wanted:
            if not (self.path / name).is_file():
                raise CheckpointError(
                    f"{self.path / name}: is missing, and other ranks' files are there",
                    hint="copy the checkpoint's folder again, whole",
                )


def find_step(folder: Path) -> Path | None:
    """The folder of the checkpoint that is meant by `folder`: itself, the one that `latest` names, or the newest.

    Raises CheckpointError where `latest` names one that is not there.
    """
    if not folder.is_dir():
        return None
    if _has_ranks(folder):
        return folder
    inner = [each for each in folder.iterdir() if each.is_dir()]
    steps = {each.name: each for each in inner if _STEP.fullmatch(each.name) or _has_ranks(each)}
    try:
        with (folder / LATEST).open("rb") as file:
            said = file.read(256).decode("utf-8", "replace").strip()
    except OSError:
        said = ""
    if said in steps:
        return steps[said]
    if _STEP.fullmatch(said):
        raise CheckpointError(f"{folder / LATEST}: names {said}, which is not there", hint=_NAME_ONE)
    counted = [each for name, each in steps.items() if _STEP.fullmatch(name)]
    if not counted and len(steps) > 1:
        raise CheckpointError(f"{folder}: holds {len(steps)} checkpoints, and no file {LATEST}", hint=_NAME_ONE)
    newest = max(counted, key=lambda each: int(each.name.removeprefix("global_step")), default=None)
    return newest or next(iter(steps.values()), None)


def _has_ranks(folder: Path) -> bool:
    return any(_RANK.fullmatch(each.name) for each in folder.iterdir())


def is_universal(folder: Path) -> bool:
    """Whether DeepSpeed's `ds_to_universal` wrote a folder."""
    return (folder / _UNIVERSAL[0]).is_file() or next((folder / _UNIVERSAL[1]).glob("*/fp32.pt"), None) is not None


def read_folder(step: Path) -> NeoXFolder:
    """The files in the folder of one checkpoint; there may be none."""
    layers, ranks, zero = {}, {}, {}
    for path in sorted(step.iterdir()):
        if found := _LAYER.fullmatch(path.name):
            layers[int(found[1]), int(found[2])] = path
        elif found := _RANK.fullmatch(path.name):
            ranks[int(found[1])] = path
        elif found := _ZERO.fullmatch(path.name):
            zero[int(found[3]), int(found[2])] = path
    return NeoXFolder(step, layers, ranks, zero)


_NAME_ONE = "name the folder of one checkpoint, such as DIR/global_step1000"
