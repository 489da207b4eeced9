"""The tokenizer's files of a published checkpoint, as AutoTokenizer reads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_gpt.api import gpt_plan_in, tokenizer_of

from neox_core.errors import CheckpointError, NeoxError
from neox_core.untrusted import read_object
from neox_hf.common import special_token

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan

TOKENIZER, CONFIG, SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"

NONE_KNOWN: dict[str, Any] = {"eos_token_id": None, "bos_token_id": None}
"""transformers has ids of its own for each family, at which a text would end."""


def write_tokenizer(plan: RunPlan, checkpoint: Path, written: Path, notes: list[str]) -> dict[str, Any]:
    """Write tokenizer.json and tokenizer_config.json; returns the special tokens for config.json. Raises OSError.

    If the tokenizer came with a tokenizer_config.json, that file is kept: it has more than ours, such as a token that
    begins a text. What cannot be written is a line of `notes`.
    """
    try:
        tokenizer: Any = tokenizer_of(plan, checkpoint)
    except NeoxError as error:
        notes.append(f"no tokenizer and no eos_token_id is written, since it cannot be loaded: {error.message}")
        return NONE_KNOWN
    if tokenizer is None:
        return NONE_KNOWN
    ids = {"eos_token_id": tokenizer.eod, "bos_token_id": tokenizer.eod}
    if not hasattr(tokenizer, "to_json"):
        notes.append(f"no {TOKENIZER} is written, since this tokenizer has no such form")
        return ids
    content = json.loads(tokenizer.to_json())
    text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
    (written / TOKENIZER).write_text(text, encoding="utf-8")
    given = _beside(plan)
    if given is not None:
        for name in (CONFIG, SPECIAL):
            if (given / name).is_file():
                shutil.copyfile(given / name, written / name)
        return ids | _named(read_object(given / CONFIG, CheckpointError), content)
    end = next(each["content"] for each in content["added_tokens"] if each["id"] == tokenizer.eod)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,
        "eos_token": end,
        "model_max_length": gpt_plan_in(plan).max_position_embeddings,
        "clean_up_tokenization_spaces": False,
    }
    (written / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return ids


def _beside(plan: RunPlan) -> Path | None:
    """The folder of the tokenizer.json that the run has, where a tokenizer_config.json lies in it."""
    file = None if plan.data.tokenizer is None else plan.data.tokenizer.settings.get("vocab_file")
    path = Path(file) if isinstance(file, str) else None
    folder = path if path is None or path.is_dir() else path.parent
    sound = folder is not None and (path == folder or (path is not None and path.name == TOKENIZER))
    return folder if sound and folder is not None and (folder / CONFIG).is_file() else None


def _named(config: dict[str, Any], content: dict[str, Any]) -> dict[str, int]:
    """The ids of the special tokens that a tokenizer_config.json names."""
    ids = {each["content"]: each["id"] for each in content.get("added_tokens", ())}
    found = {f"{part}_token_id": ids.get(special_token(config, f"{part}_token") or "") for part in ("bos", "eos")}
    return {name: each for name, each in found.items() if each is not None}
