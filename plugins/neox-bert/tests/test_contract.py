"""The checks of the kinds that are here."""

from typing import Any

import pytest
from encoders import example_encoder
from neox_author.testing import check_architecture, check_objective, load_only
from neox_gpt.testing import check_mixer

IDS = {"cls_token_id": 29, "sep_token_id": 30, "mask_token_id": 31, "pad_token_id": 0}


SPARSE = {"sparsity": "all", "sparse_attention": {"mode": "bslongformer", "block": 2, "num_sliding_window_blocks": 1}}


@pytest.mark.parametrize(
    "keys", [{}, {"no_weight_tying": False, "apply_residual_connection_post_layernorm": True}, SPARSE]
)
def test_architecture(keys: dict[str, Any]) -> None:
    check_architecture(load_only("neox-bert"), "bert", **IDS, **keys)


def test_mixer() -> None:
    check_mixer(load_only("neox-bert"), "bidirectional")


@pytest.mark.parametrize("settings", [{}, {"short_seq_prob": 0.9, "mask_prob": 0.5}])
def test_objective(settings: dict[str, float]) -> None:
    model = example_encoder()
    check_objective(load_only("neox-bert"), "masked-lm", model=model, special=4, sentence_pairs="none", **settings)
