"""Families of today's shapes: the numbers of transformers' own models, and the same bits after a round trip."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from families import MODELS, MODERN, THREE, family_of, imported_to, ours, roughened, tensors
from neox_author.testing.ranks import run_ranks
from neox_gpt.attention.cache import DecodingCache
from neox_gpt.build import build_model
from neox_hf.export import choose_family, export_hf
from neox_hf.plugin import neox_model_families
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from neox_core.checkpoint.read import read_weights
from neox_core.errors import ConfigError
from neox_core.hooks.component import load_path
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups

TOKENS = torch.randint(96, (3, 40), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("name", MODERN)
def test_in_and_out(name: str, tmp_path: Path) -> None:
    """Logits, loss and gradients; decoding; the same bits back, from a file that its family alone may write."""
    torch.manual_seed(5)
    theirs = roughened(MODERN[name]())
    theirs.save_pretrained(tmp_path / "theirs")
    plan = imported_to(tmp_path / "theirs", tmp_path / "ours")
    model = ours(plan, tmp_path / "ours").eval()
    expected = theirs(TOKENS).logits
    assert expected.std() > 0.3
    got = model.logits(TOKENS)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    labels = TOKENS.roll(-1, 1)
    loss = model.loss(TOKENS, labels)
    wanted = F.cross_entropy(expected.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-5)
    loss.backward()
    wanted.backward()
    family = family_of(theirs)
    mine, given = dict(model.named_parameters()), {key: each.grad for key, each in theirs.named_parameters()}
    for rule in family.weights(plan.model):
        torch.testing.assert_close(
            mine[rule.ours].grad, rule.join([given[each] for each in rule.theirs]), rtol=0, atol=1e-4
        )
    with torch.no_grad():
        cache = model.new_cache(40)
        assert isinstance(cache, DecodingCache)
        parts = [model.logits(part, cache) for part in TOKENS.split([25, 1, 1, 6, 7], 1)]
        torch.testing.assert_close(torch.cat(parts, 1), got, rtol=0, atol=1e-4)
    notes = export_hf(tmp_path / "ours/step-00000000", plan, tmp_path / "out", family)
    assert any("the same logits" in note for note in notes)
    given, written = tensors(tmp_path / "theirs"), tensors(tmp_path / "out")
    assert given.keys() == written.keys()
    assert all(torch.equal(given[each], written[each]) for each in given)
    again = imported_to(tmp_path / "out", tmp_path / "again")
    assert again.model == plan.model
    families = {each.name: load_path(each.target)() for each in neox_model_families()}
    chosen = choose_family(plan.model, families)
    assert type(chosen) is type(family)


@pytest.mark.parametrize("length", [24, 40])
def test_dynamic_positions_are_those_of_transformers(length: int, tmp_path: Path) -> None:
    """Within the 24 positions of the first training and beyond them, where the base grows with the sequence."""
    torch.manual_seed(5)
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    theirs = roughened(LlamaForCausalLM(LlamaConfig(**{**THREE, "max_position_embeddings": 24}, rope_parameters=rope)))
    theirs.save_pretrained(tmp_path / "theirs")
    plan = imported_to(tmp_path / "theirs", tmp_path / "ours")
    assert plan.model.position.settings["rotary_original_positions"] == 24
    model, tokens = ours(plan, tmp_path / "ours").eval(), TOKENS[:, :length]
    expected = theirs(tokens).logits
    torch.testing.assert_close(model.logits(tokens), expected, rtol=0, atol=1e-4)
    wanted = F.cross_entropy(expected.flatten(0, 1), tokens.roll(-1, 1).flatten())
    torch.testing.assert_close(model.loss(tokens, tokens.roll(-1, 1)), wanted, rtol=0, atol=1e-5)
    assert model.window == 24, "keys of earlier tokens would turn with each new one"
    export_hf(tmp_path / "ours/step-00000000", plan, tmp_path / "out", family_of(theirs))
    again = imported_to(tmp_path / "out", tmp_path / "again")
    assert again.model == plan.model


ALL = {
    **MODERN,
    **{name: MODELS[name] for name in ("pythia", "serial, tied, all turned", "llama, grouped, tied, biased")},
}


@pytest.mark.parametrize("name", ALL)
def test_a_key_that_a_family_does_not_know_is_refused(name: str) -> None:
    theirs = ALL[name]()
    written = json.loads(theirs.config.to_json_string(use_diff=False))
    family_of(theirs).keys(written)
    with pytest.raises(ConfigError, match="residual_gate is not understood"):
        family_of(theirs).keys({**written, "residual_gate": 2})


@pytest.mark.parametrize("name", ALL)
def test_a_value_of_another_type_is_refused(name: str) -> None:
    """Whatever the value is computed with: either the keys are found, or one error says what is wrong."""
    theirs = ALL[name]()
    written = json.loads(theirs.config.to_json_string(use_diff=False))
    for key in written:
        for value in ("/dev/zero", 0, -1, 1e400, [], {}, [{}], True, None):
            with suppress(ConfigError):
                family_of(theirs).keys({**written, key: value})


@pytest.mark.parametrize("name", ALL)
def test_two_ranks_have_the_numbers_of_one(name: str, tmp_path: Path) -> None:
    """The ranks are threads; each has its heads and its rows of the vocabulary."""
    torch.manual_seed(5)
    roughened(ALL[name]()).save_pretrained(tmp_path / "theirs")
    plan = imported_to(tmp_path / "theirs", tmp_path / "ours")
    weights, labels = read_weights(tmp_path / "ours/step-00000000"), TOKENS.roll(-1, 1)
    whole = ours(plan, tmp_path / "ours").eval()
    whole.loss(TOKENS, labels).backward()
    wanted = {key: each.grad for key, each in whole.named_parameters()}
    logits = whole.logits(TOKENS).detach()

    def rank(tensor: Any) -> None:
        groups = Groups(None, None, 0, 1, tensor=tensor)
        context = BuildContext(torch.device("cpu"), torch.float32, groups, seed=1)
        model = build_model(plan.model, 96, context).eval()
        for key, parameter in model.named_parameters():
            cut = getattr(parameter, "cut", None)
            parameter.data.copy_(weights[key] if cut is None else cut.of(weights[key]))
        torch.testing.assert_close(model.logits(TOKENS), logits, rtol=0, atol=1e-5)
        model.loss(TOKENS, labels).backward()
        for key, parameter in model.named_parameters():
            cut = getattr(parameter, "cut", None)
            one = wanted[key] if cut is None else cut.of(wanted[key])
            torch.testing.assert_close(parameter.grad, one, rtol=0, atol=1e-5 * float(1 + one.abs().max()))

    run_ranks(2, rank)
