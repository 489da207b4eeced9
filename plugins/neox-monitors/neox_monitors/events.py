"""The values of a report under the names that DeepSpeed's monitors gave them."""

from __future__ import annotations

from collections.abc import Mapping

TRAIN = "Train/Samples"
SPLITS = {"valid": "Valid/Samples", "test": "Test/Samples"}


def events(values: Mapping[str, float]) -> dict[str, float]:
    """`loss` -> `Train/Samples/train_loss`, `lr` -> `Train/Samples/lr`, `valid_loss` -> `Valid/Samples/loss`, ..."""
    return {_event(name): value for name, value in values.items()}


def _event(name: str) -> str:
    head, _, rest = name.partition("_")
    if head in SPLITS:
        return f"{SPLITS[head]}/{rest}"
    if head == "eigenvalue":
        return f"Train/Eigenvalues/ModelBlockParam_{rest}"
    if head == "startup":
        return f"Startup/{rest}"
    return f"{TRAIN}/{'train_loss' if name == 'loss' else name}"
