"""Models that start with layers of a teacher, and a loss that follows one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from neox_author.testing import check_objective, load_only
from neox_compression.config.sections.distillation import DistillationBlock, DistillationSettings
from neox_compression.teacher.distillation import Distillation, divergence
from neox_gpt.api import build_model

from neox_core.checkpoint.read import read_weights
from neox_core.contracts.objective import Batch
from neox_core.errors import NeoxError
from neox_core.parallel.context import BuildContext

AT = "compression_training.layer_reduction"


@pytest.fixture
def teacher(resolve: Callable[..., Any], trained: Callable[..., Path], tmp_path: Path) -> Path:
    """Four layers, after four steps."""
    return trained(resolve("num-layers=4", f"save={tmp_path}/teacher").plan).parent


def reduced(teacher: Path, *more: str, layers: str = "[3, 1]") -> tuple[str, ...]:
    return (f"{AT}={{enabled: true, teacher: {teacher}, teacher_layer: {layers}}}", *more)


def test_a_model_starts_with_layers_of_the_teacher(
    resolve: Callable[..., Any], context: BuildContext, teacher: Path
) -> None:
    """Named layers and modules are the teacher's to the bit; the rest is drawn as without."""
    plan = resolve(*reduced(teacher, f"{AT}.other_module_name=[embedding, final_norm]", f"{AT}.keep_number_layer=2"))
    found = dict(build_model(plan.plan.model, 64, context).named_parameters())
    drawn = dict(build_model(resolve().plan.model, 64, context).named_parameters())
    theirs = read_weights(teacher / "step-00000004")
    assert set(found) == set(drawn)
    for name, value in found.items():
        source = name.replace("layers.0.", "layers.3.") if name.startswith("layers.0.") else name
        taken = name.startswith(("layers.", "embedding.", "final_norm."))
        assert torch.equal(value, theirs[source] if taken else drawn[name])
        assert name == "final_norm.weight" or "norm" in name or not torch.equal(theirs[source], drawn[name])


def test_a_layer_may_be_named_as_a_module(resolve: Callable[..., Any], context: BuildContext, teacher: Path) -> None:
    plan = resolve(f"{AT}={{enabled: true, teacher: {teacher}, other_module_name: [layers.1]}}").plan
    found, theirs = build_model(plan.model, 64, context), read_weights(teacher / "step-00000004")
    assert torch.equal(found.get_parameter("layers.1.mlp.up.weight"), theirs["layers.1.mlp.up.weight"])
    assert not torch.equal(found.get_parameter("layers.0.mlp.up.weight"), theirs["layers.0.mlp.up.weight"])


def test_it_trains_and_resumes_without_the_values_of_the_teacher(
    resolve: Callable[..., Any], trained: Callable[..., Path], teacher: Path
) -> None:
    plan = resolve(*reduced(teacher)).plan
    first = read_weights(trained(plan, 2))
    theirs = read_weights(teacher / "step-00000004")
    assert not torch.equal(first["layers.0.mlp.up.weight"], theirs["layers.3.mlp.up.weight"])
    halves = read_weights(trained(plan, 4))
    whole = read_weights(trained(resolve(*reduced(teacher), f"save={teacher.parent}/whole").plan, 4))
    assert all(torch.equal(halves[name], value) for name, value in whole.items())


def test_divergence_is_that_of_the_definition() -> None:
    """In float64: the sum of p (log p - log q), with both softmaxes at the temperature; 0 for equal logits."""
    ours, theirs = torch.tensor([[0.5, -1.0, 2.0]]), torch.tensor([[1.5, 0.0, -0.5]])
    for temperature in (1.0, 2.5):
        q, p = ((each.double() / temperature).exp() for each in (ours, theirs))
        q, p = q / q.sum(), p / p.sum()
        wanted = (p * (p / q).log()).sum()
        assert abs(divergence(ours, theirs, temperature).double() - wanted) < 1e-6
    assert float(divergence(ours, ours, 3.0).abs()) < 1e-7


@pytest.mark.parametrize(("weight", "temperature"), [(0.5, 1.0), (0.9, 2.0)])
def test_loss_follows_the_teacher(
    resolve: Callable[..., Any], context: BuildContext, teacher: Path, weight: float, temperature: float
) -> None:
    """The loss of a batch from the logits of both models in float64; an evaluation has the cross-entropy alone."""
    run = resolve(*reduced(teacher), "objective=distillation").plan
    model = build_model(run.model, 64, context)
    objective = Distillation(
        run, DistillationSettings(distillation=DistillationBlock(weight=weight, temperature=temperature))
    )
    tokens = torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(9))
    batch = Batch(tokens)
    found = model(lambda passes: objective.loss(passes, batch))
    theirs_plan = resolve("num-layers=4", f"save={teacher}").plan
    theirs = build_model(theirs_plan.model, 64, context, read_weights(teacher / "step-00000004")).eval()
    with torch.no_grad():
        ours, other = (each.logits(tokens[:, :-1]).double() for each in (model, theirs))
    cross = torch.nn.functional.cross_entropy(ours.flatten(0, 1), tokens[:, 1:].flatten())
    q, p = (torch.log_softmax(each / temperature, -1) for each in (ours, other))
    wanted = (1 - weight) * cross + weight * temperature**2 * (p.exp() * (p - q)).sum(-1).mean()
    assert abs(float(found.mean) - float(wanted)) < 1e-5
    assert abs(float(found.metrics["cross_entropy"]) - float(cross)) < 1e-5
    found.mean.backward()
    with torch.no_grad():
        alone = model(lambda passes: objective.loss(passes, batch))
    assert abs(float(alone.mean) - float(cross)) < 1e-5


def test_what_a_default_stands_for_is_the_same(resolve: Callable[..., Any], teacher: Path) -> None:
    """An imported checkpoint writes each size out."""
    resolve(*reduced(teacher, "num-kv-heads=4", "head-dim=8", "use-bias-in-attn-output=true"))


def test_a_teacher_that_does_not_fit_is_refused(resolve: Callable[..., Any], teacher: Path, tmp_path: Path) -> None:
    for sets, said in (
        ((f"{AT}.enabled=true",), "layer_reduction.teacher: is required"),
        (reduced(teacher, layers="[1]"), "teacher_layer: names 1 layers for the 2 of this model"),
        (reduced(teacher, layers="[1, 4]"), "4 is not a layer of the teacher, which has 0 to 3"),
        (reduced(teacher, f"{AT}.keep_number_layer=3"), "keep_number_layer: 3 is not num-layers, 2"),
        (reduced(teacher, f"{AT}.module_name_prefix=bert.encoder"), "'bert.encoder' is not where a decoder has"),
        (reduced(teacher, f"{AT}.other_module_name=[pooler]"), "'pooler' is not a module of this model"),
        (reduced(teacher, "norm=layernorm"), "the teacher is another model: norm is"),
        (reduced(teacher, "hidden-size=64"), "the teacher is another model: hidden_size is 32 there and 64 here"),
        (reduced(tmp_path), "no checkpoint of a teacher here"),
        ((f"{AT}={{enabled: true, teacher: {teacher}}}",), "takes nothing of the teacher"),
        (("objective=distillation",), "distillation.teacher: is required"),
        (("objective=distillation", f"distillation.teacher={teacher}", "rotary-pct=0.5"), "position is"),
        (("objective=distillation", "attention-config=[[[global], 7]]"), "attention-config: names the attention of 7"),
        (reduced(teacher, "mlp-type=[[[regular], 7]]"), "mlp-type: names the feed-forward of 7 layers"),
    ):
        with pytest.raises(NeoxError, match=said.replace("[", r"\[")):
            resolve(*sets)


def test_the_objective_keeps_the_clauses_of_its_kind(
    resolve: Callable[..., Any], trained: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a plan whose model is a decoder, of which the kit's own plan knows nothing."""
    plan = resolve("padded-vocab-size=640", "seq-length=8").plan
    folder, real = trained(plan, 1, vocab=640).parent, Distillation.__init__

    def of_a_decoder(self: Distillation, given: Any, settings: DistillationSettings) -> None:
        real(self, evolve(given, architecture=plan.architecture, model=plan.model), settings)

    monkeypatch.setattr(Distillation, "__init__", of_a_decoder)
    check_objective(load_only("neox-compression"), "distillation", distillation={"teacher": str(folder)})
