"""The whole model against Hugging Face's GPT-NeoX, and against what must hold of any decoder."""

import math

import pytest
import torch
from neox_gpt.gpt import GPT
from neox_gpt.scope import Scope
from neox_gpt.shape import num_parameters
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from neox_core.errors import ConfigError
from neox_core.parallel.sample_keys import sample_keys
from neox_core.run.optimizer import spared_from_decay


def roughen(model: nn.Module) -> None:
    """Gains and biases away from 1 and 0, so that a forgotten one shows."""
    random = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=random)


def hugging_face(model: GPT) -> GPTNeoXForCausalLM:
    """transformers' model with our weights; its names on the left."""
    shape = model.shape
    twin = GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            num_hidden_layers=shape.num_layers,
            num_attention_heads=shape.num_heads,
            intermediate_size=shape.intermediate_size,
            max_position_embeddings=shape.max_positions,
            use_parallel_residual=shape.parallel_residual,
            tie_word_embeddings=shape.tie_embeddings,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
            attn_implementation="eager",
        )
    )
    names = {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "attention.query_key_value": "attention.qkv",
        "attention.dense": "attention.output",
        "mlp.dense_h_to_4h": "mlp.up",
        "mlp.dense_4h_to_h": "mlp.down",
    }
    weights = {
        "gpt_neox.embed_in.weight": model.embedding.weight,
        "gpt_neox.final_layer_norm.weight": model.final_norm.weight,
        "gpt_neox.final_layer_norm.bias": model.final_norm.bias,
        "lm_head.weight": model.output_weight,
    }
    ours = dict(model.named_parameters())
    for layer in range(shape.num_layers):
        for theirs, name in names.items():
            for kind in ("weight", "bias"):
                weights[f"gpt_neox.layers.{layer}.{theirs}.{kind}"] = ours[f"layers.{layer}.{name}.{kind}"]
    twin.load_state_dict({name: weight.detach().clone() for name, weight in weights.items()}, strict=True)
    return twin.eval()


@pytest.mark.parametrize("name", ["pythia", "serial"])
@pytest.mark.parametrize("tied", [False, True])
def test_equals_hugging_face(make, tokens: Tensor, name: str, tied: bool) -> None:
    model = make(name, tie_embeddings=tied)
    roughen(model)
    twin = hugging_face(model)
    ours, theirs = model.logits(tokens), twin(tokens).logits
    assert theirs.std() > 0.5
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)

    labels = tokens.roll(-1, 1)
    labels[0, :5] = -100
    loss = model.loss(tokens, labels)
    expected = F.cross_entropy(theirs.flatten(0, 1), labels.flatten(), ignore_index=-100)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)

    loss.backward()
    expected.backward()
    torch.testing.assert_close(model.output_weight.grad, twin.lm_head.weight.grad, rtol=1e-3, atol=1e-6)
    for block, layer in zip(model.layers, twin.gpt_neox.layers, strict=True):
        torch.testing.assert_close(
            block.attention.qkv.weight.grad, layer.attention.query_key_value.weight.grad, rtol=1e-3, atol=1e-6
        )
        torch.testing.assert_close(block.mlp.up.bias.grad, layer.mlp.dense_h_to_4h.bias.grad, rtol=1e-3, atol=1e-6)


def test_counts_parameters_as_hugging_face(make) -> None:
    for tied in (False, True):
        model = make(tie_embeddings=tied)
        assert num_parameters(model) == hugging_face(model).num_parameters()


def test_loss_and_logits_agree(make, form: str, tokens: Tensor) -> None:
    model = make(form, dtype=torch.float64)
    roughen(model)
    labels = tokens.roll(-1, 1)
    expected = F.cross_entropy(model.logits(tokens).flatten(0, 1), labels.flatten())
    torch.testing.assert_close(model.loss(tokens, labels), expected, rtol=1e-12, atol=0)


def test_a_token_sees_nothing_after_it(make, form: str, tokens: Tensor) -> None:
    model = make(form)
    roughen(model)
    other = tokens.clone()
    other[:, 10:] = (other[:, 10:] + 1) % 96
    before, after = model.logits(tokens), model.logits(other)
    torch.testing.assert_close(before[:, :10], after[:, :10], rtol=1e-5, atol=1e-5)
    assert (before[:, 10:] - after[:, 10:]).abs().amax(-1).min() > 1e-3


@torch.no_grad()
def test_cache_changes_nothing(make, form: str, tokens: Tensor) -> None:
    model = make(form).eval()
    roughen(model)
    whole = model.logits(tokens)
    for steps in ([24], [1] * 24, [10, 1, 1, 12], [5, 7, 12]):
        cache = model.new_cache(capacity=24)
        parts = [model.logits(part, cache) for part in tokens.split(steps, 1)]
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)
        assert cache.length == 24


@torch.no_grad()
def test_cache_that_is_full_says_so(make, tokens: Tensor) -> None:
    model = make()
    with pytest.raises(ValueError, match="25 tokens do not fit a cache of 24"):
        model.logits(torch.cat((tokens, tokens[:, :1]), 1), model.new_cache(24))


def test_post_norm_residual_is_the_normalised_tensor(make) -> None:
    block = make("post-norm residual").layers[0]
    plain = make("serial").layers[0]
    for one in (block, plain):  # sublayers that add nothing leave the residual alone to be seen
        for projection in (one.attention.output, one.mlp.down):
            nn.init.zeros_(projection.weight)
    gain = torch.linspace(-2, 2, 64)  # else a norm of a norm is the norm
    block.attention_norm.weight.data.copy_(gain)
    x = torch.randn(2, 24, 64, generator=torch.Generator().manual_seed(5))
    position = make().position
    prepared = position.prepare(torch.arange(24), torch.float32)
    normed = F.layer_norm(F.layer_norm(x, (64,)) * gain, (64,))
    torch.testing.assert_close(block(x, position, Scope(prepared)), normed, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plain(x, position, Scope(prepared)), x, rtol=0, atol=0)


def test_no_weight_decay_is_declared_by_the_modules(make) -> None:
    for form in ("pythia", "gated, tied, learned"):
        model = make(form)
        parameters = dict(model.named_parameters())
        assert spared_from_decay(model) == {name for name, value in parameters.items() if value.dim() < 2}
        assert {"final_norm.weight", "layers.0.attention.qkv.bias"} <= spared_from_decay(model)


def test_dropout_acts_in_training_only(make, tokens: Tensor) -> None:
    for kind in ("hidden_dropout", "attention_dropout"):
        model = make(**{kind: 0.5})
        roughen(model)
        labels = tokens.roll(-1, 1)
        some, others = sample_keys(1, 0, 3, "cpu"), sample_keys(1, 3, 3, "cpu")
        assert not torch.equal(model.train().loss(tokens, labels, some), model.loss(tokens, labels, others))
        with pytest.raises(ValueError, match="needs the keys"):
            model.loss(tokens, labels)
        quiet = make()
        quiet.load_state_dict(model.state_dict())
        torch.testing.assert_close(
            model.eval().loss(tokens, labels, some), quiet.loss(tokens, labels), rtol=1e-6, atol=0
        )


@pytest.mark.parametrize("name", ["pythia", "serial"])
def test_hidden_dropout_acts_on_embeddings_and_on_what_each_sublayer_adds(make, tokens: Tensor, name: str) -> None:
    """Dropped with certainty, the embeddings are zero and a block adds nothing."""
    model = make(name, hidden_dropout=1.0).train()
    roughen(model)
    x = torch.randn(3, 24, 64, generator=torch.Generator().manual_seed(5))
    prepared = model.position.prepare(torch.arange(24), torch.float32)
    keys = sample_keys(1, 0, 3, "cpu")
    assert torch.equal(model.layers[0](x, model.position, Scope(prepared, keys)), x)
    assert not model.embedding(tokens, torch.arange(24), model.position, keys).any()
    assert not torch.equal(model.layers[0](x, model.position, Scope(prepared)), x)


def test_softmax_in_fp32_is_nearer_to_the_truth(make) -> None:
    """Large scores in bfloat16: upcast, attention errs by the rounding of its inputs and output alone."""
    plain, upcast = make(dtype=torch.bfloat16), make(dtype=torch.bfloat16, attention_softmax_in_fp32=True)
    random = torch.Generator().manual_seed(2)
    query, key, value = (torch.randn(2, 4, 24, 16, generator=random).bfloat16() * 3 for _ in range(3))
    scores = (query.double() @ key.double().transpose(2, 3)) / math.sqrt(16)
    scores = scores.masked_fill(torch.ones(24, 24, dtype=torch.bool).triu(1), -math.inf)
    truth = scores.softmax(-1) @ value.double()

    def error(model: GPT) -> float:
        return float((model.layers[0].attention._attend(query, key, value).double() - truth).norm() / truth.norm())

    assert error(upcast) < 2**-9
    assert error(upcast) < error(plain)
    with torch.autocast("cpu", torch.bfloat16):
        assert error(upcast) < 2**-9


def test_autocast_keeps_fp32_weights_and_a_loss_near_fp32(make, form: str, tokens: Tensor) -> None:
    model = make(form)
    labels = tokens.roll(-1, 1)
    exact = model.loss(tokens, labels)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(tokens, labels)
    loss.backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=2e-3, atol=0)
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}


def test_narrow_loss_reaches_the_loss(make, tokens: Tensor) -> None:
    """The loss of a single token is then a number of bfloat16, which an fp32 one is not in general."""
    model = make(dtype=torch.bfloat16)
    for narrow in (True, False):
        model.narrow_loss = narrow
        losses = torch.stack([model.loss(tokens[:1, :1], tokens[:1, at : at + 1]) for at in range(5)])
        assert bool((losses == losses.bfloat16()).all()) == narrow


def test_half_weights_train(make, form: str, tokens: Tensor) -> None:
    model = make(form, dtype=torch.bfloat16)
    loss = model.loss(tokens, tokens.roll(-1, 1))
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert abs(loss.item() - math.log(96)) < 0.2


@pytest.mark.parametrize("form", ["pythia", "llama, rpe"])
def test_layer_scaling_leaves_the_scores(make, tokens: Tensor, form: str) -> None:
    plain, scaled = make(form), make(form, query_key_layer_scaling=True)
    for model in (plain, scaled):
        roughen(model)
    torch.testing.assert_close(scaled.logits(tokens), plain.logits(tokens), rtol=1e-4, atol=1e-5)


def test_layer_scaling_keeps_products_within_half_precision(make) -> None:
    """Queries and keys whose product fp16 cannot hold: the query of layer 64 is divided by 64 first."""
    attention = make(dtype=torch.float16, query_key_layer_scaling=True).layers[0].attention
    query = torch.full((1, 4, 2, 16), 100.0, dtype=torch.float16)
    query[:, :, 1] = -100.0
    value = torch.eye(2, 16, dtype=torch.float16).expand(1, 4, 2, 16)
    bias = lambda prepared: lambda head, row, column: torch.zeros(())  # noqa: E731 the path that multiplies in fp16
    assert (query @ query.transpose(2, 3)).isinf().any()
    got = attention._attend(query, query, value, bias, layer=63)
    torch.testing.assert_close(got, value, rtol=0, atol=1e-3)  # each sees itself alone: its own score is the largest


def test_one_norm_for_both_is_two_equal_ones(make, tokens: Tensor) -> None:
    tied, untied = make(shared_norm=True), make()
    roughen(tied)
    weights = tied.state_dict()
    copies = {
        name.replace("attention_norm", "mlp_norm"): value for name, value in weights.items() if "attention_n" in name
    }
    untied.load_state_dict({**weights, **copies})
    assert num_parameters(untied) == num_parameters(tied) + 3 * 2 * 64
    torch.testing.assert_close(tied.logits(tokens), untied.logits(tokens), rtol=0, atol=0)


@pytest.mark.parametrize(("style", "order"), [("grouped", [0, 1, 0, 1]), ("spaced", [0, 0, 1, 1])])
def test_layers_share_weights_in_the_documents_order(make, tokens: Tensor, style: str, order: list[int]) -> None:
    shared, whole = make(num_layers=4, num_unique_layers=2, param_sharing_style=style), make(num_layers=4)
    roughen(shared)
    assert len(shared.layers) == 2
    assert list(shared.shape.layer_order) == order
    weights = {name: value for name, value in shared.state_dict().items() if not name.startswith("layers.")}
    for layer, block in enumerate(order):
        weights |= {f"layers.{layer}.{name}": value for name, value in shared.layers[block].state_dict().items()}
    whole.load_state_dict(weights)
    torch.testing.assert_close(shared.logits(tokens), whole.logits(tokens), rtol=0, atol=0)
    cache = shared.eval().new_cache(capacity=24)
    with torch.no_grad():
        parts = [shared.logits(part, cache) for part in tokens.split([9, 1, 14], 1)]
        torch.testing.assert_close(torch.cat(parts, 1), whole.logits(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_kv_heads": 3}, "not a multiple of num-kv-heads 3"),
        ({"num_unique_layers": 2}, "num-layers 3 is not a multiple of num-unique-layers 2"),
        ({"shared_norm": True, "parallel_residual": False}, "gpt-j-tied needs gpt-j-residual"),
    ],
)
def test_numbers_that_make_no_model(make, change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(**change)
