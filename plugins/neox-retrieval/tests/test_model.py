"""The retriever: its vectors by hand, in layouts of ranks, and the weights that it starts with."""

from pathlib import Path
from typing import Any

import pytest
import torch
from neox_author.testing.ranks import run_ranks
from neox_retrieval.objective import InverseCloze
from neox_retrieval.objective_section import InverseClozeSettings
from torch import Tensor
from towers import HEAD, PAD, QUERY, SEQ, built, resolved

from neox_core.contracts.objective import Batch
from neox_core.errors import CheckpointError, ConfigError
from neox_core.parallel.tensor import TensorParallel

ROWS = 4
TOWERS = ([], ["share-towers=true"])


def tokens(rows: int = ROWS) -> Tensor:
    found = torch.randint(60, (rows, SEQ + 1), generator=torch.Generator().manual_seed(3))
    found[:, 5:QUERY], found[1, 20:] = PAD, PAD
    return found


def objective(plan: Any, *counts: int) -> InverseCloze:
    return InverseCloze(plan, InverseClozeSettings(report_topk_accuracies=counts))


def losses(plan: Any, model: Any, given: Tensor, *counts: int) -> Any:
    """The loss of a batch, with gradients in the model, and the metrics."""
    kept: list[Any] = []

    def compute(run: Any) -> Tensor:
        kept.append(objective(plan, *counts).loss(run, Batch(given)))
        return kept[0].mean

    keys = torch.arange(len(given))
    model(compute, keys).backward()
    return kept[0]


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: each.grad.detach().clone() for name, each in model.named_parameters()}


@pytest.mark.parametrize("sets", TOWERS)
def test_its_size_is_told_on_the_host(sets: list[str], tmp_path: Path) -> None:
    found = resolved(tmp_path, *sets)
    model = built(found.plan)
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    assert shapes == found.size.shapes
    assert (model.block is None) == bool(sets)
    first, second = (dict(model.named_parameters())[f"{name}_head.weight"] for name in ("query", "block"))
    assert first.shape == (HEAD, 32)
    assert torch.equal(first, second), "a text is near itself from the start"


def test_a_vector_is_a_linear_layer_on_the_first_state(tmp_path: Path) -> None:
    """The encoder is neox-bert's, whose states its own tests compare with transformers'."""
    plan = resolved(tmp_path).plan
    model, given = built(plan), tokens()
    out: list[Any] = []
    model(lambda run: out.append(run(given[:, :-1])) or torch.zeros(()), torch.arange(ROWS))
    for tower, head, part, found in (
        (model.query, model.query_head, given[:, :QUERY], out[0].queries),
        (model.block, model.block_head, given[:, QUERY:-1], out[0].blocks),
    ):
        states = tower.hidden(part)
        torch.testing.assert_close(found, states[:, 0] @ head.weight.T + head.bias)
        unpadded = part[:, : int((part[1] != PAD).sum())]
        torch.testing.assert_close(tower.hidden(unpadded)[1, 0], states[1, 0])


def test_loss_and_accuracies_by_hand(tmp_path: Path) -> None:
    plan = resolved(tmp_path).plan
    model, given = built(plan), tokens(8)
    found = losses(plan, model, given, 1, 3, 20)
    queries, blocks = model.embed_queries(given[:, :QUERY]), model.embed_blocks(given[:, QUERY:-1])
    products = queries @ blocks.T
    torch.testing.assert_close(found.mean, -products.log_softmax(1).diagonal().mean())
    for k in (1, 3):
        right = [each in row.topk(k).indices for each, row in enumerate(products)]
        assert float(found.metrics[f"top{k}_acc"]) == pytest.approx(sum(right) / 8)
    assert float(found.metrics["top20_acc"]) == 1
    assert found.metrics.keys() == {"top1_acc", "top3_acc", "top20_acc"}
    assert not losses(plan, model, given).metrics


def test_a_vector_that_is_not_a_number_is_never_right(tmp_path: Path) -> None:
    plan = resolved(tmp_path).plan
    model = built(plan)
    with torch.no_grad():
        model.block_head.bias.fill_(torch.nan)
    assert float(losses(plan, model, tokens(), 1).metrics["top1_acc"]) == 0


@pytest.mark.parametrize("sets", TOWERS)
def test_data_parallel_ranks_share_one_softmax(sets: list[str], tmp_path: Path) -> None:
    """Two ranks with half of a batch each have the loss and the gradients of one rank with all of it."""
    plan = resolved(tmp_path, *sets).plan
    whole = built(plan)
    expected = losses(plan, whole, tokens(), 1)

    def rank(tensor: TensorParallel) -> tuple[Any, dict[str, Tensor]]:
        model = built(plan, data=(tensor.group, tensor.rank, 2))
        half = tokens()[2 * tensor.rank :][:2]
        return losses(plan, model, half, 1), gradients(model)

    ranks = run_ranks(2, rank)
    torch.testing.assert_close(sum(each.mean for each, _ in ranks) / 2, expected.mean, rtol=0, atol=1e-9)
    accuracy = sum(each.metrics["top1_acc"] for each, _ in ranks) / 2
    torch.testing.assert_close(accuracy, expected.metrics["top1_acc"])
    for name, wanted in gradients(whole).items():
        mean = sum(found[name] for _, found in ranks) / 2
        torch.testing.assert_close(mean, wanted, rtol=0, atol=1e-9, msg=name)


def test_tensor_parallel_ranks_share_the_encoders(tmp_path: Path) -> None:
    plan = resolved(tmp_path).plan
    whole = built(plan)
    expected = losses(plan, whole, tokens())
    weights = {name: each.detach() for name, each in whole.named_parameters()}

    def rank(tensor: TensorParallel) -> tuple[Any, dict[str, Tensor]]:
        model = built(plan, tensor=tensor)
        for name, each in model.named_parameters():
            cut = getattr(each, "cut", None)
            assert torch.equal(each, weights[name] if cut is None else cut.of(weights[name])), name
        return losses(plan, model, tokens()), {
            name: tensor.whole(each, each.grad) for name, each in model.named_parameters()
        }

    for loss, found in run_ranks(2, rank):
        torch.testing.assert_close(loss.mean, expected.mean, rtol=0, atol=1e-9)
        for name, wanted in gradients(whole).items():
            torch.testing.assert_close(found[name], wanted, rtol=0, atol=1e-9, msg=name)


def test_query_and_block_drop_different_numbers(tmp_path: Path) -> None:
    """Which follow from the keys of the samples; there is no dropout in evaluation."""
    plan = resolved(tmp_path, "share-towers=true", "hidden-dropout=0.5").plan
    model, given = built(plan), tokens()
    given[:, QUERY : 2 * QUERY], given[:, 2 * QUERY :] = given[:, :QUERY], PAD

    def states(keys: Tensor | None) -> Any:
        out: list[Any] = []
        model(lambda run: out.append(run(given[:, :-1])) or torch.zeros(()), keys)
        return out[0]

    first, again, other = states(torch.arange(ROWS)), states(torch.arange(ROWS)), states(torch.arange(ROWS) + 9)
    assert model.draws
    assert torch.equal(first.queries, again.queries)
    assert not torch.equal(first.queries, other.queries)
    assert not torch.allclose(first.queries, first.blocks)
    with pytest.raises(ValueError, match="needs the keys"):
        model(lambda run: torch.zeros(()), None)
    model.eval()
    calm = states(None)
    torch.testing.assert_close(calm.queries, calm.blocks)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    plan = resolved(tmp_path).plan
    weights = {name: each.detach() for name, each in built(plan).named_parameters()}
    with pytest.raises(CheckpointError, match="vectors have 6 elements, not 1000000000000"):
        built(resolved(tmp_path, "ict-head-size=1000000000000").plan, weights)
    del weights["block.embedding.weight"]
    with pytest.raises(CheckpointError, match="weights of another model"):
        built(plan, weights)


SHORTER = (
    "enabled: true, curriculum_type: seqlen, min_difficulty: 8, max_difficulty: 40, schedule_type: fixed_linear, "
    "schedule_config: {total_curriculum_step: 10, difficulty_step: 8}"
)
REFUSED: tuple[tuple[list[str], str], ...] = (
    (["objective=masked-lm"], "objective: .*masked-lm needs the logits of tokens"),
    (["architecture=bert", "ict-head-size=null", "query-length=null"], "needs a retriever"),
    (["ict-head-size=null"], "ict-head-size: .*is required"),
    (["num_gpus=2", "pipe-parallel-size=2"], "a retriever has no pipeline"),
    (["num_gpus=2", "model-parallel-size=2", "sequence-parallel=true"], "an encoder does not take it"),
    (["query-length=33"], "33 leaves 7 of seq-length 40 for the block"),
    (["bert-load=gone", "ict-load=gone"], "contradicts ict-load"),
    (["no-weight-tying=true"], "which a retriever does not have"),
    (["model-changes=[lora]"], "lora changes one decoder"),
    (["mlp-type=moe", "moe-num-experts=2"], "have the regular MLP alone"),
    (["faiss-use-gpu=true"], "faiss-use-gpu: .*(has no GPU|not installed)"),
    (["query-in-block-prob=1.5"], "query-in-block-prob"),
    (["report-topk-accuracies=[0]"], "report-topk-accuracies"),
    (["report-topk-accuracies=[5, 5]"], "names 5 twice"),
    (["train-data-paths=[a]", "valid-data-paths=[a]"], "belongs to objective causal-lm"),
    ([f"curriculum_learning={{{SHORTER}}}"], "a retriever takes whole samples"),
)


@pytest.mark.parametrize(("sets", "said"), REFUSED)
def test_what_it_does_not_take_is_refused(sets: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        resolved(tmp_path, *sets)


def test_a_checkpoint_that_is_not_there_stops_a_start_and_not_a_look(tmp_path: Path) -> None:
    said = "gone: no checkpoint here to start with"
    assert any(
        said in each.message and each.severity == "warning" for each in resolved(tmp_path, "bert-load=gone").notes
    )
    with pytest.raises(ConfigError, match=said):
        resolved(tmp_path, "bert-load=gone", start=True)


def test_a_gpu_of_faiss_is_asked_for_when_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The check looks at what is installed, without an import of it."""
    import neox_retrieval.checks as checks

    def absent(name: str) -> None:
        return None

    monkeypatch.setattr(checks, "find_spec", absent)
    with pytest.raises(ConfigError, match="FAISS is not installed"):
        resolved(tmp_path, "faiss-use-gpu=true")


@pytest.mark.parametrize("recomputed", [False, True])
def test_recomputation_changes_nothing(recomputed: bool, tmp_path: Path) -> None:
    sets = ["checkpoint-activations=true"] if recomputed else []
    plan, plain = resolved(tmp_path, *sets).plan, resolved(tmp_path).plan
    model, other = built(plan), built(plain)
    losses(plan, model, tokens()), losses(plain, other, tokens())
    for name, wanted in gradients(other).items():
        torch.testing.assert_close(gradients(model)[name], wanted, msg=name)


def test_layouts_of_sparse_attention_act_in_both_encoders(tmp_path: Path) -> None:
    """One of all blocks changes nothing, also where a query has half a block; a window of one block does."""
    sparse = [
        f"sparse_attention={{mode: {mode}, block: 8}}" for mode in ("dense", "local, num_sliding_window_blocks: 1")
    ]
    plan = resolved(tmp_path, "query-length=10").plan
    plans = [resolved(tmp_path, "query-length=10", "sparsity=all", each).plan for each in sparse]
    whole, dense, local = map(built, (plan, *plans))
    wanted, same, other = (losses(plan, each, tokens()).mean for each in (whole, dense, local))
    torch.testing.assert_close(same, wanted, rtol=0, atol=1e-9)
    for name, each in gradients(whole).items():
        torch.testing.assert_close(gradients(dense)[name], each, rtol=0, atol=1e-9, msg=name)
    assert not torch.allclose(other, wanted)
