"""What a config asks of kernels: refused on the host where no machine could do it, left to the ranks otherwise."""

from collections.abc import Callable
from pathlib import Path

import pytest

from neox_core.config.report import ProblemsError, render
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import KernelPlan, RunPlan

Prepare = Callable[..., RunPlan]
PARTED = ("reset-attention-mask=true", "tokenizer-type=GPT2BPETokenizer", "vocab-file=a", "merge-file=b")


@pytest.fixture
def notes() -> list[str]:
    """What `prepare` was told."""
    return []


@pytest.fixture
def prepare(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, notes: list[str]) -> Prepare:
    (tmp_path / "triton.py").touch()  # looked for, and not imported
    monkeypatch.syspath_prepend(tmp_path)
    catalog = load_plugins()

    def _prepare(*sets: str, num_cuda: int = 0) -> RunPlan:
        (tmp_path / "tiny.yml").write_text(text)
        machine = Machine(num_cuda, 4)
        done = prepare_run([tmp_path / "tiny.yml"], sets, catalog=catalog, machine=machine, start=False)
        notes.extend(render([each]) for each in done.notes)
        return done.plan

    return _prepare


def asked(plan: RunPlan) -> dict[str, tuple[str, str, list[str]]]:
    def short(each: KernelPlan) -> tuple[str, str, list[str]]:
        return each.asked, each.key, [offer.name for offer in each.offers]

    return {each.op: short(each) for each in plan.model.kernels}


def test_a_cpu_takes_the_references_unless_asked(prepare: Prepare) -> None:
    assert prepare().model.kernels == ()
    assert "neox-triton" not in prepare().plugins
    assert prepare("bias-gelu-fusion=false").model.kernels == ()
    plan = prepare("bias-gelu-fusion=true")
    assert asked(plan) == {"bias_gelu": ("fused", "bias_gelu_fusion", ["bias_gelu.triton"])}
    assert "neox-triton" in plan.plugins


def test_the_reference_of_an_op_that_a_model_computes_by_compiled_code(prepare: Prepare) -> None:
    """It is planned by name, where that of any other op is what the model has without a plan."""
    plan = prepare("kernels={cross_entropy: reference, layer_norm: reference}")
    assert asked(plan) == {"cross_entropy": ("reference", "kernels", [])}
    assert plan.model.kernels[0].reference == "neox_gpt.loss:by_torch"


def test_a_gpu_may_take_any_but_softmaxes(prepare: Prepare) -> None:
    found = asked(prepare(num_cuda=1))
    assert {"layer_norm", "bias_gelu", "bias_dropout_add", "cross_entropy"} <= set(found)
    assert all(each[0] == "auto" for each in found.values())
    assert "scaled_upper_triang_masked_softmax" not in found
    assert "layer_norm" not in asked(prepare("layernorm-fusion=false", num_cuda=1))
    assert set(asked(prepare("compile=true", num_cuda=1))) == {"adam_step"}


@pytest.mark.parametrize("value", ["true", "auto"])
def test_a_compiled_layer_has_no_kernels_and_that_is_said(prepare: Prepare, notes: list[str], value: str) -> None:
    plan = prepare(f"compile={value}", "use-bias-in-mlp=false", "log-interval=1", num_cuda=1)
    assert set(asked(plan)) == {"adam_step"}
    (said,) = (each for each in notes if " compile: " in each)
    left_out = "bias_dropout_add, cross_entropy, layer_norm"
    assert said.startswith(f"--set: note: compile: leaves out the kernels of {left_out}, which are not compiled along")
    notes.clear()
    prepare(f"compile={value}", "log-interval=1")
    prepare("compile=false", num_cuda=1)
    assert not any(" compile: " in each for each in notes)


def test_compile_auto_names_its_callback_beside_others(prepare: Prepare) -> None:
    plan = prepare("compile=auto", "ema.enabled=true", "callbacks=[profile]", "profile.first=1")
    assert plan.model.compile == "auto"
    assert {each.name for each in plan.callbacks} == {"profile", "measure_compile", "ema"}
    (alone,) = prepare("compile=auto", "callbacks=[measure_compile]").callbacks
    assert alone.name == "measure_compile"
    assert prepare("compile=true").callbacks == ()


@pytest.mark.parametrize(
    ("switch", "op", "more"),
    [
        ("scaled-upper-triang-masked-softmax-fusion", "scaled_upper_triang_masked_softmax", ()),
        ("scaled-masked-softmax-fusion", "scaled_masked_softmax", ()),
        ("bias-dropout-fusion", "bias_dropout_add", ()),
        ("layernorm-fusion", "layer_norm", ()),
        ("rmsnorm-fusion", "rms_norm", ("norm=rmsnorm",)),
        ("rope-fusion", "rotary_pair", ("pos-emb=rotary",)),
    ],
)
def test_each_switch_is_about_one_op(prepare: Prepare, switch: str, op: str, more: tuple[str, ...]) -> None:
    assert set(asked(prepare(f"{switch}=true", *more))) == {op}


def test_kernels_by_name(prepare: Prepare) -> None:
    named = "kernels={layer-norm: triton, cross_entropy: neox-triton:triton, bias_gelu: reference}"
    found = asked(prepare(named, num_cuda=1))
    assert found["layer_norm"] == ("triton", "kernels", ["layer_norm.triton"])
    assert found["cross_entropy"][2] == ["cross_entropy.triton"]
    assert "bias_gelu" not in found


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            ("rmsnorm-fusion=true", "norm=layernorm"),
            "rmsnorm-fusion: does nothing: nothing in this model computes rms_n",
        ),
        (("use-bias-in-mlp=false", "bias-gelu-fusion=true"), "bias-gelu-fusion: does nothing: the MLP has no bias"),
        (
            ("compile=true", "layernorm-fusion=true"),
            "layernorm-fusion: does nothing: the kernels of layer_norm are not",
        ),
        (
            ("zero_optimization={stage: 3}", "bias-dropout-fusion=true"),
            "bias-dropout-fusion: does nothing: at ZeRO 3 a bias is sharded",
        ),
        (
            (*PARTED, "scaled-upper-triang-masked-softmax-fusion=true"),
            "scaled-upper-triang-masked-softmax-fusion: does nothing: the mask is not purely causal",
        ),
        (
            ("layernorm-fusion=true",),
            "layernorm-fusion: on a CPU torch's operators compute layer_norm, unless an installed",
        ),
        (
            ("scaled-masked-softmax-fusion=true",),
            "scaled-masked-softmax-fusion: uses attention that stores no scores, or else a kernel",
        ),
    ],
)
def test_a_switch_stops_no_run_and_says_what_it_comes_to(
    prepare: Prepare, sets: tuple[str, ...], said: str, notes: list[str]
) -> None:
    prepare(*sets)
    (found,) = (each for each in notes if "-fusion: " in each)
    assert found.startswith(f"--set: note: {said}")


def test_a_switch_that_a_kernel_meets_needs_no_note(prepare: Prepare, notes: list[str]) -> None:
    prepare("layernorm-fusion=true", num_cuda=1)
    assert not any("fusion" in each for each in notes)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (("kernels={rms_norm: triton}",), "kernels: nothing in this model computes rms_norm"),
        (("compile=true", "kernels={layer_norm: triton}"), "kernels: the kernels of layer_norm are not compiled"),
        (("onnx-safe=true", "bias-gelu-fusion=true"), "bias-gelu-fusion: contradicts onnx-safe (keep one of the two)"),
        (
            ("zero_optimization={stage: 1, offload_optimizer: {device: cpu}}", "kernels={adam_step: triton}"),
            "kernels: offload_optimizer keeps adam_step on the host",
        ),
        (("kernels={layer_norm: cuda}",), "kernels: no kernel 'cuda' for layer_norm"),
        (("kernels={layernorm: triton}",), "kernels: no op 'layernorm'"),
        (("kernels={layernorm: reference}",), "kernels: no op 'layernorm'"),
        (
            ("kernels={layer_norm: reference}", "layernorm-fusion=true"),
            "kernels: contradicts layernorm-fusion",
        ),
    ],
)
def test_what_no_machine_could_do(prepare: Prepare, sets: tuple[str, ...], message: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        prepare(*sets)
    assert message in str(caught.value)
