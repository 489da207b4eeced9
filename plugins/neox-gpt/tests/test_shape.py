"""Numbers that follow from a model's shape, against counts by hand and by torch's own counter."""

from functools import partial

import pytest
import torch
from attrs import evolve
from neox_gpt.shape import ModelShape, build_shape, flops_per_token, num_parameters
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from neox_core.data.tokenizer import padded_vocab
from neox_core.errors import ConfigError

PYTHIA_70M = ModelShape(6, 512, 8, 2048, 2048, 2048, 50304, tie_embeddings=False, parallel_residual=True)


def test_head_and_mlp_widths() -> None:
    assert (PYTHIA_70M.head_dim, PYTHIA_70M.mlp_width) == (64, 2048)
    assert evolve(PYTHIA_70M, gated=True).mlp_width == 4096


@pytest.mark.parametrize("form", ["serial", "gated, tied, learned"])
def test_flops_are_those_that_torch_counts(make, form: str) -> None:
    """torch's counter sees the products of a float64 model, whose attention by the math path is not halved either."""
    model = make(form, dtype=torch.float64)
    tokens = torch.zeros(2, 24, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        hidden = model.hidden(tokens)
        (hidden @ model.output_weight.T).sum().backward()
    assert counter.get_total_flops() / tokens.numel() == pytest.approx(flops_per_token(model.shape, 24), rel=0.01)


def test_parameters_of_pythia_70m() -> None:
    """70,426,624 by EleutherAI's model card (arXiv:2304.01373, table 1), of them 18,915,328 outside the embeddings."""
    from neox_gpt.gpt import GPT
    from neox_gpt.mlp import MLP

    with torch.device("meta"):
        norm, activation = partial(torch.nn.LayerNorm, 512), torch.nn.functional.gelu
        feed_forward = lambda block: MLP(PYTHIA_70M.feed_forward(block), activation)  # noqa: E731
        model = GPT(PYTHIA_70M, norm, feed_forward, torch.nn.Identity())
    assert num_parameters(model) == 70_426_624
    assert num_parameters(model) - 2 * 50304 * 512 == 18_915_328


def test_padded_vocab(plan) -> None:
    """50257 with 128 gives 50304 rows, as the ledger of keys says."""
    open_plan = evolve(plan, padded_vocab_size=None, make_vocab_size_divisible_by=128)
    assert padded_vocab(open_plan, 50257) == 50304
    assert padded_vocab(open_plan, 50304) == 50304
    assert padded_vocab(open_plan, 1) == 128
    fixed = evolve(plan, padded_vocab_size=1000)
    assert padded_vocab(fixed, 999) == padded_vocab(fixed, None) == 1000
    with pytest.raises(ConfigError, match="1000 is smaller than the tokenizer's 1001"):
        padded_vocab(fixed, 1001)
    with pytest.raises(ConfigError, match="vocabulary is not known"):
        padded_vocab(open_plan, None)


def test_shapes_that_make_no_model_are_refused(plan) -> None:
    with pytest.raises(ConfigError, match="64 is not a multiple of num-attention-heads 5"):
        build_shape(evolve(plan, num_attention_heads=5), 96, gated=False)
    with pytest.raises(ConfigError, match="exclude each other"):
        build_shape(evolve(plan, parallel_residual=True, residual_post_norm=True), 96, gated=False)
