"""What a command needs of a run that was saved: its newest checkpoint, and the plan that wrote it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_core.checkpoint.manifest import read_manifest
from neox_core.config.stores import address_fault, split_address
from neox_core.errors import CheckpointError
from neox_core.files import cache_folder, replacing
from neox_core.hooks.install import require_modules
from neox_core.plan.component import offered
from neox_core.plan.runfile import StorePlan
from neox_core.plan.stored.installed import installed
from neox_core.plan.stored.saved import DAMAGED, MANIFEST, RUN, find_checkpoint, read_run, read_sealed
from neox_core.plan.stored.stores import open_store
from neox_gpt.config.plan import GPTPlan

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog
    from neox_core.plan.runfile import ModelPlan, RunPlan


MOST_PASSES = 1000
"""Through layers, for each stored weight."""
MOST_POSITIONS = 2**24
"""Of a sequence, which needs no weight of its length."""


def saved_run(load: Path | str, catalog: Catalog) -> tuple[Path, RunPlan]:
    """The newest checkpoint in `load`, a run's `save` folder or one checkpoint in it, and the plan that wrote it.

    Of one in a store, everything but the optimizer's files is copied to the user's cache folder first.
    run.json is compared with the manifest before it is read, and its sizes with the weights that there are. A component
    is the one that `catalog` has of the same kind, plugin and name; one that is not installed cannot be loaded. Raises
    CheckpointError.
    """
    checkpoint = find_checkpoint(Path(load)) if split_address(str(load)) is None else _copied(str(load), catalog)
    if checkpoint is None:
        raise CheckpointError(
            f"{load}: no checkpoint here", hint="name the folder that the config calls `save`, or one checkpoint in it"
        )
    plan = installed(read_run(checkpoint), checkpoint / RUN, catalog, CheckpointError)
    _check_sizes(checkpoint, plan.model)
    return checkpoint, plan


def _copied(url: str, catalog: Catalog) -> Path | None:
    """A local copy of the newest checkpoint at an address, for commands that train nothing."""
    protocol, place = split_address(url) or ("", "")
    message, hint = address_fault(place)
    if message:
        raise CheckpointError(f"an address of a store {message}", hint=hint)
    entry = catalog.find("store", protocol)
    require_modules(entry)
    store = open_store(StorePlan(url, offered(entry), str(cache_folder() / "stores" / protocol / place.lstrip("/"))))
    folder = store.find()
    if folder is None:
        return None
    for other in set(store.folder.glob("step-*")) - {folder}:
        shutil.rmtree(other, ignore_errors=True)
    with store.naming():
        for file, seal in read_manifest(folder).files.items():
            if ".optimizer." not in file:
                content = store.fetch(folder, file, seal.size, seal.sha256)
                with replacing(folder / file) as new:
                    new.symlink_to(content.name)
    return folder


def _check_sizes(checkpoint: Path, model: ModelPlan) -> None:
    """Raises CheckpointError for a size that no model with the weights of the checkpoint has.

    It is asked before anything is made of the sizes, which take memory and time.
    """
    weights = _weights(read_sealed(checkpoint / MANIFEST)[0].get("pieces"))
    longest = max((length for shape in weights.values() for length in shape), default=0)
    for name, value, most in _bounds(model, longest, len(weights)):
        if not 1 <= value <= most:
            raise CheckpointError(
                f"{checkpoint / RUN}: {name} is {value:,}, and the {len(weights):,} weights of the checkpoint allow"
                f" 1 to {most:,}",
                hint=DAMAGED,
            )


def _bounds(model: ModelPlan, longest: int, count: int) -> Iterator[tuple[str, int, int]]:
    """(name, value, the most that it can be) of each size, which is 1 at least.

    longest: the longest side of a weight. count: of weights. Each layer of a decoder has a weight of its own, and each
    width is a side of a weight.
    """
    yield "num_layers", model.num_layers, MOST_PASSES * count
    yield "seq_length", model.seq_length, MOST_POSITIONS
    if model.padded_vocab_size is None:
        yield "make_vocab_size_divisible_by", model.make_vocab_size_divisible_by, longest
    else:
        yield "padded_vocab_size", model.padded_vocab_size, longest
    if not isinstance(model, GPTPlan):
        return
    yield "num_unique_layers", model.num_layers if model.num_unique_layers is None else model.num_unique_layers, count
    for name in ("hidden_size", "intermediate_size", "num_attention_heads"):
        yield name, getattr(model, name), longest
    if model.num_kv_heads is not None:
        yield "num_kv_heads", model.num_kv_heads, longest
    if model.head_dim is not None:
        yield "head_dim", model.head_dim, longest
    yield "max_position_embeddings", model.max_position_embeddings, MOST_POSITIONS


def _weights(pieces: Any) -> dict[str, list[int]]:
    """Shape by name of the weights in a manifest; empty for an invalid list, which is refused later."""
    found: dict[str, list[int]] = {}
    for piece in pieces if isinstance(pieces, list) else ():
        if isinstance(piece, dict) and piece.get("kind") == "weight" and isinstance(piece.get("shape"), list):
            found[str(piece.get("name"))] = [each for each in piece["shape"] if isinstance(each, int)]
    return found
