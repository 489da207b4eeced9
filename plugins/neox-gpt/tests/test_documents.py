"""Several documents in a sample: as if each were alone."""

import pytest
import torch
from attrs import evolve
from neox_gpt.build import build_model
from neox_gpt.config.plan import GPTPlan
from neox_gpt.documents import DocumentRules
from torch import Tensor
from torch.nn import functional as F

from neox_core.errors import ConfigError
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups

ALL = {"reset_position_ids": True, "reset_attention_mask": True}


def test_the_documents_own_example() -> None:
    """[a, b, EOD, c, d] has positions 0 1 2 0 1; c and d see nothing up to EOD; what EOD predicts does not count."""
    rules = DocumentRules(9, reset_positions=True, reset_attention=True, mask_loss=True)
    tokens = torch.tensor([[1, 2, 9, 3, 4], [9, 9, 1, 2, 9]])
    assert rules.positions(tokens).tolist() == [[0, 1, 2, 0, 1], [0, 0, 0, 1, 2]]
    assert rules.index(tokens).tolist() == [[0, 0, 0, 1, 1], [0, 1, 2, 2, 2]]
    counts = rules.counts(tokens)
    assert counts is not None
    assert counts.tolist() == [[True, True, False, True, True], [False, False, True, True, False]]
    off = DocumentRules(9)
    assert off.positions(tokens) is off.index(tokens) is None
    assert off.counts(tokens) is None


@pytest.mark.parametrize(
    "form", ["pythia", "gated, tied, learned", "gpt-j, alibi", "llama, rpe"], ids=lambda name: name.replace(" ", "")
)
def test_documents_of_a_sample_are_as_if_alone(make, tokens: Tensor, form: str) -> None:
    model, alone = make(form, **ALL), make(form)
    ends = tokens[:1].clone()
    ends[ends == 0] = 1
    ends[0, 6] = ends[0, 15] = 0
    parts = [alone.logits(part) for part in ends.split([7, 9, 8], 1)]
    torch.testing.assert_close(model.logits(ends), torch.cat(parts, 1), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(alone.logits(ends)[:, 7:], model.logits(ends)[:, 7:], atol=1e-3)


def test_each_switch_acts_alone(make, tokens: Tensor) -> None:
    """Positions alone leave the first document visible, the mask alone leaves positions counting."""
    ends = tokens.clone()
    ends[:, 6] = 0
    changed = ends.clone()
    changed[:, 2] = (changed[:, 2] + 1) % 95 + 1
    for position, mask in ((True, False), (False, True)):
        model = make("gated, tied, learned", reset_position_ids=position, reset_attention_mask=mask)
        later = model.logits(ends)[:, 7:], model.logits(changed)[:, 7:]
        assert torch.allclose(*later, atol=1e-6) == mask
        plain = make("gated, tied, learned").logits(ends)
        assert not torch.allclose(model.logits(ends), plain, atol=1e-4)


def test_eod_leaves_the_loss(make, tokens: Tensor) -> None:
    ends = tokens.clone()
    ends[:, (4, 11)] = 0
    labels = ends.roll(-1, 1)
    logits = make().logits(ends)
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    expected = losses[(ends != 0).flatten()].mean()
    torch.testing.assert_close(make(eod_mask_loss=True).loss(ends, labels), expected, rtol=1e-5, atol=0)


def test_without_an_end_there_are_no_documents(plan: GPTPlan) -> None:
    context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), 1)
    with pytest.raises(ConfigError, match="end of a document is not known"):
        build_model(evolve(plan, eod_mask_loss=True), 96, context)
