"""A model computed by kernels has the loss and the gradients of one computed by the references."""

from typing import Any

import pytest
import torch
from attrs import evolve
from neox_gpt.architecture import GPTArchitecture
from neox_gpt.build import build_model
from neox_gpt.config.plan import GPTPlan
from neox_kernels.api import use_kernels
from neox_triton.plugin import KERNELS, target_of

from neox_core.hooks.component import load_path
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.parallel.sample_keys import sample_keys
from neox_core.plan.runfile import ComponentRef, KernelPlan, RecomputePlan

CONTEXT = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)


def component(kind: str, target: str, settings_class: str | None = None, **settings: float) -> ComponentRef:
    return ComponentRef(kind, "any", "neox-any", "0.1.0", target, settings_class, settings)


ROTARY = component("position", "neox_positions.rotary:Rotary", "neox_positions.settings:RotarySettings", rotary_pct=0.5)
NORMS = {
    name: component("norm", f"neox_norms.{name.lower()}:{name}", f"neox_norms.settings:{name}Settings")
    for name in ("RMSNorm", "LayerNorm", "ScaleNorm")
}
PLAN = GPTPlan(
    num_layers=2,
    hidden_size=24,
    num_attention_heads=2,
    intermediate_size=20,
    seq_length=3,
    max_position_embeddings=8,
    norm=NORMS["RMSNorm"],
    activation=component("activation", "neox_activations.gelu:Gelu"),
    position=ROTARY,
    padded_vocab_size=40,
    make_vocab_size_divisible_by=1,
    tie_embeddings=False,
    parallel_residual=False,
    residual_post_norm=False,
    hidden_dropout=0.1,
    attention_dropout=0.2,
    init_method="normal",
    output_init_method="normal",
    init_std=0.2,
    attention_softmax_in_fp32=False,
)
FORMS = {
    "serial": PLAN,
    "parallel": evolve(PLAN, parallel_residual=True, norm=NORMS["LayerNorm"]),
    "shared norm": evolve(PLAN, parallel_residual=True, shared_norm=True),
    "post norm": evolve(PLAN, residual_post_norm=True, norm=NORMS["ScaleNorm"]),
    "geglu": evolve(PLAN, activation=component("activation", "neox_activations.gated:GeGLU")),
    "swiglu": evolve(PLAN, activation=component("activation", "neox_activations.gated:SwiGLU"), num_kv_heads=1),
    "no biases": evolve(PLAN, attention_bias=False, mlp_bias=False),
    "tanh": evolve(PLAN, activation=component("activation", "neox_activations.gelu:TanhGelu")),
    "recomputed": evolve(PLAN, recompute=RecomputePlan(1)),
    "alibi": evolve(PLAN, position=component("position", "neox_positions.alibi:Alibi")),
}
FUSED_DOCUMENTS = evolve(PLAN, reset_attention_mask=True, eod_mask_loss=True)


def offers(*ops: str) -> tuple[KernelPlan, ...]:
    return tuple(KernelPlan(op, "fused", "", (component("kernel", target_of(op)),)) for op in KERNELS if op in ops)


OPS = tuple(op for op in KERNELS if op not in ("block_sparse_attention", "scaled_masked_softmax"))


def compare(plan: GPTPlan, ops: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The ops whose kernels ran."""
    ran: set[str] = set()
    for op in ops:
        kernel = load_path(target_of(op))

        def watched(*arguments: Any, op: str = op, run: Any = kernel.run, **named: Any) -> Any:
            ran.add(op)
            return run(*arguments, **named)

        monkeypatch.setattr(target_of(op).replace(":", "."), evolve(kernel, run=watched))
    tokens = torch.arange(6).view(2, 3) * 7 % 35
    keys = sample_keys(seed=3, first=0, count=2, device="cpu")
    losses, gradients = [], []
    for kernels in ((), offers(*ops)):
        plan = evolve(plan, kernels=kernels)
        model = build_model(plan, 40, CONTEXT, eod=0)
        with torch.no_grad():
            generator = torch.Generator().manual_seed(5)
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
        use_kernels(model, GPTArchitecture(plan), plan.kernels, CONTEXT, torch.float32)
        loss = model.loss(tokens, tokens.roll(-1, 1), keys)
        loss.backward()
        losses.append(loss.detach())
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert torch.allclose(*losses, rtol=1e-5)
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradients[1][name], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max())), name
    return ran


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_model(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = compare(FORMS[form], OPS, monkeypatch)
    always = {"bias_dropout_add", "scaled_upper_triang_masked_softmax", "cross_entropy"}
    own = {
        "parallel": {"layer_norm"},
        "post norm": {"scale_norm"},
    }.get(form, {"rms_norm"})
    own |= {form} if form.endswith("glu") else set() if form == "no biases" else {"bias_gelu"}
    assert ran == always | own | ({"rotary_pair"} if form != "alibi" else set())


@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm", "scale_norm"])
@pytest.mark.parametrize("post", [False, True])
def test_the_residual_is_added_with_the_norm(norm: str, post: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    name = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm", "scale_norm": "ScaleNorm"}[norm]
    added: list[bool] = []
    kernel = load_path(f"neox_triton.{norm}:KERNEL")

    def watched(*arguments: Any) -> Any:
        added.append(arguments[-1] is not None)
        return kernel.run(*arguments)

    monkeypatch.setattr(f"neox_triton.{norm}.KERNEL", evolve(kernel, run=watched))
    assert compare(evolve(PLAN, norm=NORMS[name], residual_post_norm=post), (norm,), monkeypatch) == {norm}
    assert added == [False, True] * 2 + [False]  # of two layers, and the last norm


def test_any_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare(FUSED_DOCUMENTS, ("scaled_masked_softmax",), monkeypatch) == {"scaled_masked_softmax"}
    assert compare(PLAN, ("scaled_masked_softmax",), monkeypatch) == {"scaled_masked_softmax"}


def test_a_triangle_alone_leaves_parted_documents_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare(FUSED_DOCUMENTS, ("scaled_upper_triang_masked_softmax",), monkeypatch) == set()
