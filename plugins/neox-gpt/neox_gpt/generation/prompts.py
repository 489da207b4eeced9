"""The prompts of a file, which anybody may have written: one a line, or a JSON object a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from neox_core.errors import DataError
from neox_core.untrusted import parse_object, read_file, short

if TYPE_CHECKING:
    from typing import Any

KEYS = ("prompt", "id")
MOST_PROMPTS = 1_000_000
LONGEST = 1 << 20
"""Characters of a prompt, which a tokenizer needs 200 times as much memory for."""


@frozen
class Prompt:
    """text: to continue. id: what a line of JSON calls it, a text or a number; None: nothing."""

    text: str
    id: str | int | None = None


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file of at most 64 MiB, in its order.

    Where its name ends in .jsonl, each line is an object with `prompt`, and with `id` if the answer is to have it; else
    each line is a prompt, also an empty one, of at most LONGEST characters. Raises DataError that names the first line
    at fault.
    """
    lines = read_file(path, DataError).split(b"\n")
    if not lines[-1]:
        del lines[-1]  # what follows the end of the last line
    if not 1 <= len(lines) <= MOST_PROMPTS:
        raise DataError(f"{path}: has {len(lines):,} lines", hint=f"give it from 1 to {MOST_PROMPTS:,} prompts")
    read = _of_json if path.suffix == ".jsonl" else _of_text
    prompts = [read(line.removesuffix(b"\r"), f"{path}:{number}") for number, line in enumerate(lines, 1)]
    number, most = max(enumerate((len(each.text) for each in prompts), 1), key=lambda each: each[1])
    if most > LONGEST:
        hint = f"give its last {LONGEST:,}; a model sees the end of a prompt that is longer than its window"
        raise DataError(f"{path}:{number}: the prompt has {most:,} characters", hint=hint)
    return prompts


def _of_text(line: bytes, where: str) -> Prompt:
    try:
        return Prompt(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: is not UTF-8: {error.reason}", hint="write the file in UTF-8") from None


def _of_json(line: bytes, where: str) -> Prompt:
    raw = parse_object(line, Path(where), DataError)
    fault = next(_faults(raw), None)
    if fault:
        raise DataError(f"{where}: {fault}", hint='write {"prompt": "a text"}, with "id" if the answer is to have it')
    return Prompt(raw["prompt"], raw.get("id"))


def _faults(raw: dict[str, Any]) -> Iterator[str]:
    unknown = next((key for key in raw if key not in KEYS), None)
    if unknown is not None:
        yield f"has the unknown key {short(unknown)!r}"
    if "prompt" not in raw:
        yield "has no key 'prompt'"
    elif not isinstance(raw["prompt"], str):
        yield f"its prompt is {short(raw['prompt'])}, not a text"
    if not isinstance(raw.get("id"), str | int | None) or isinstance(raw.get("id"), bool):
        yield f"its id is {short(raw['id'])}, not a text or a whole number"
