"""The checks of the kinds that are here, which read vectors where other models give logits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from neox_author.testing import Reading, check_architecture, check_objective, load_only
from neox_retrieval.model import Retriever, RetrieverOutputs
from torch import Tensor
from torch.nn import functional
from towers import resolved

IDS = {"cls_token_id": 29, "sep_token_id": 30, "mask_token_id": 31, "pad_token_id": 0}
QUERY = 3


def loss(outputs: Any, labels: Tensor) -> Tensor:
    return functional.cross_entropy(*outputs.similarities())


def vectors(outputs: Any) -> Tensor:
    """[batch, vectors of query and block]."""
    return torch.cat([outputs.queries, outputs.blocks], 1)


def some_outputs(states: Tensor) -> RetrieverOutputs:
    """Of states [batch, seq, width]."""
    return RetrieverOutputs(states[:, :QUERY].mean(1), states[:, QUERY:].mean(1))


def architecture(shared: bool) -> None:
    own = {"objective": "inverse-cloze", "ict_head_size": 4, "query_length": QUERY, "share_towers": shared}
    reading = Reading(loss, vectors)
    check_architecture(load_only("neox-retrieval"), "retriever", reading=reading, no_weight_tying=False, **own, **IDS)


@pytest.mark.parametrize("shared", [False, True])
def test_architecture(shared: bool) -> None:
    architecture(shared)


def test_a_vector_that_other_samples_change_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Retriever.embed_blocks

    def centred(self: Retriever, *given: Any) -> Tensor:
        found = sound(self, *given)
        return found - found.mean(0)

    monkeypatch.setattr(Retriever, "embed_blocks", centred)
    with pytest.raises(AssertionError, match="a sample does not depend on the others in its micro-batch"):
        architecture(shared=True)


def objective(tmp_path: Path) -> None:
    ids = (f"{name.replace('_', '-')}={640 + place}" for place, name in enumerate(IDS))
    model = resolved(tmp_path, f"query-length={QUERY}", "padded-vocab-size=644", *ids).plan.model
    check_objective(
        load_only("neox-retrieval"),
        "inverse-cloze",
        model=model,
        special=4,
        outputs=some_outputs,
        use_one_sent_docs=True,
        report_topk_accuracies=(1, 3),
    )


def test_objective(tmp_path: Path) -> None:
    objective(tmp_path)


def test_a_loss_that_knows_the_order_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = RetrieverOutputs.similarities

    def first(self: RetrieverOutputs) -> tuple[Tensor, Tensor]:
        products, own = sound(self)
        return products, torch.zeros_like(own)

    monkeypatch.setattr(RetrieverOutputs, "similarities", first)
    with pytest.raises(AssertionError, match="does not depend on the order of the samples"):
        objective(tmp_path)
