"""The checkpoint format `hf`: the weights of a published checkpoint, to start a run from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field
from neox_checkpoints.api import ImportedProgress, Stored

from neox_core.errors import CheckpointError
from neox_core.hooks.install import require_modules
from neox_core.hooks.loader import load_plugins
from neox_core.untrusted import read_object, short
from neox_hf.common import special_token

if TYPE_CHECKING:
    from neox_core.hooks.registry import Entry
    from neox_core.plan.runfile import ModelPlan
    from neox_hf.contracts import ModelFamily

CONFIG, WEIGHTS = "config.json", ("*.safetensors", "pytorch_model*.bin")
REST: Mapping[str, Any] = {
    "data-path": "none",
    "train-iters": 1,
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
}
"""What a run needs besides a model; a run that trains these weights sets it itself."""


class HuggingFace:
    """A `CheckpointFormat`: folders that transformers reads."""

    def recognises(self, folder: Path) -> str | None:
        """The model that config.json names, where there are weights beside it."""
        if not (folder / CONFIG).is_file() or not any(next(folder.glob(files), None) for files in WEIGHTS):
            return None
        return f"a model of transformers, {short(read_config(folder).get('model_type'))}"

    def open(self, folder: Path, configs: Sequence[Path], *, optimizer: bool) -> PublishedWeights:
        """Raises CheckpointError, also where configs are given, and ConfigError for a model that neox does not have."""
        if configs:
            raise CheckpointError(f"{folder}: config.json says all of a published model", hint="leave out --config")
        config = read_config(folder)
        entry = family_entry(str(config.get("model_type")))
        family: ModelFamily = entry.load()()
        keys = dict(family.keys(config))
        if (folder / "tokenizer.json").is_file():
            keys |= {"tokenizer-type": "HFTokenizer", "vocab-file": str((folder / "tokenizer.json").resolve())}
            keys |= end_of_text(folder)
        keys |= {**REST, "seq-length": keys["max-position-embeddings"]}
        return PublishedWeights(folder, family, keys)


NOTE = "a published checkpoint has weights alone: set data-path, train-iters, the batch and the optimizer"
COMMENTS = {"data-path": "of the training to come, as the next lines"}


@define
class PublishedWeights:
    """A `ForeignCheckpoint` without the state of an optimizer."""

    folder: Path
    family: ModelFamily
    keys: Mapping[str, Any] = field(factory=dict)
    comments: Mapping[str, str] = COMMENTS
    notes: Sequence[str] = (NOTE,)
    progress: ImportedProgress = ImportedProgress(0)
    has_optimizer: bool = False
    files: Sequence[Path] = ()

    def tensors(self, model: ModelPlan) -> Iterator[Stored]:
        """Every weight. Raises CheckpointError for one that is missing, damaged or of another shape."""
        from neox_hf.import_checkpoint import checked_weights

        for name, tensor in checked_weights(self.folder, self.family, model):
            yield Stored("weight", name, tensor)


def family_entry(name: str) -> Entry:
    """The model family of that name, with all that it needs installed. Raises ConfigError and PluginError."""
    entry = load_plugins().find("model family", name)
    require_modules(entry)
    return entry


def read_config(folder: Path) -> dict[str, Any]:
    """Raises CheckpointError."""
    path = folder / CONFIG
    if not path.exists():
        raise CheckpointError(f"{path}: is not there", hint="name a folder that transformers reads")
    return read_object(path, CheckpointError)


def end_of_text(folder: Path) -> dict[str, str]:
    """The key of the token that ends a text, where tokenizer_config.json names one."""
    path = folder / "tokenizer_config.json"
    known = read_object(path, CheckpointError) if path.is_file() else {}
    end = special_token(known, "eos_token") or special_token(known, "sep_token")
    return {} if end is None else {"eod-token": end}
