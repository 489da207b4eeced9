"""transformers' BERT: its logits, losses and gradients, and the same bits after a round trip."""

from pathlib import Path
from typing import Any

import pytest
import torch
from neox_author.testing.ranks import run_ranks
from neox_bert.family import Bert
from neox_gpt.api import build_model
from neox_hf.commands import prepare_import
from neox_hf.export import choose_family, export_hf
from neox_hf.import_checkpoint import import_hf
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining

from neox_core.checkpoint.read import read_weights
from neox_core.errors import ConfigError
from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.parallel.tensor import ALONE, TensorParallel
from neox_core.plan.runfile import RunPlan

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "layer_norm_eps": 1e-2,  # large enough for its place to be seen
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{each}" for each in range(91))]
SEP, PAD = 3, 0


def published(folder: Path, *, pairs: bool) -> Any:
    torch.manual_seed(5)
    model = (BertForPreTraining if pairs else BertForMaskedLM)(BertConfig(**SMALL)).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordPiece({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(WORDS[:5])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"sep_token": "[SEP]"}')
    return model


def imported(folder: Path, out: Path) -> RunPlan:
    plan, _ = prepare_import(folder, out, None, load_plugins())
    import_hf(folder, out, plan, Bert())
    return plan


def ours(plan: RunPlan, out: Path, tensor: TensorParallel = ALONE) -> Any:
    context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1, tensor), seed=1)
    weights = read_weights(out / "step-00000000")
    model = build_model(plan.model, 96, context, weights if tensor.size == 1 else None)
    if tensor.size > 1:
        for name, parameter in model.named_parameters():
            cut = getattr(parameter, "cut", None)
            parameter.data.copy_(weights[name] if cut is None else cut.of(weights[name]))
    return model.eval()


def samples() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens of two pieces, of which the second sample is filled up; their pieces; what may be seen."""
    tokens = torch.randint(5, 96, (2, 40), generator=torch.Generator().manual_seed(7))
    tokens[:, 0], tokens[0, 17], tokens[0, 39], tokens[1, 9], tokens[1, 25] = 2, SEP, SEP, SEP, SEP
    tokens[1, 26:] = PAD
    ends = (tokens == SEP).long()
    return tokens, (ends.cumsum(1) - ends).clamp(max=1), (tokens != PAD).long()


@pytest.mark.parametrize("pairs", [True, False])
def test_in_and_out(pairs: bool, tmp_path: Path) -> None:
    theirs = published(tmp_path / "theirs", pairs=pairs)
    plan = imported(tmp_path / "theirs", tmp_path / "ours")
    model = ours(plan, tmp_path / "ours")
    tokens, types, seen = samples()
    expected = theirs(tokens, token_type_ids=types, attention_mask=seen)
    logits = expected.prediction_logits if pairs else expected.logits
    outputs = model.outputs(tokens, None, None)
    shown = seen.bool()
    torch.testing.assert_close(outputs.logits()[shown], logits[shown], rtol=0, atol=1e-4)
    labels = tokens.masked_fill((torch.arange(40) % 3 > 0) | ~shown, -100)
    wanted = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    got = outputs.cross_entropy(labels)
    if pairs:
        torch.testing.assert_close(outputs.pairs, expected.seq_relationship_logits, rtol=0, atol=1e-4)
        wanted = wanted + expected.seq_relationship_logits.square().sum()
        got = got + outputs.pairs.square().sum()
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
    got.backward()
    wanted.backward()
    mine, given = dict(model.named_parameters()), {key: each.grad for key, each in theirs.named_parameters()}
    for rule in Bert().weights(plan.model):
        expected_gradient = rule.join([given[each] for each in rule.theirs])
        torch.testing.assert_close(mine[rule.ours].grad, expected_gradient, rtol=0, atol=1e-4)
    notes = export_hf(tmp_path / "ours/step-00000000", plan, tmp_path / "out", Bert())
    assert any("the same logits" in note for note in notes)
    given_files, written = (load_file(tmp_path / each / "model.safetensors") for each in ("theirs", "out"))
    assert given_files.keys() == written.keys()
    assert all(torch.equal(each, written[name]) for name, each in given_files.items())
    assert imported(tmp_path / "out", tmp_path / "again").model.hidden_size == 32


def test_two_ranks_share_it(tmp_path: Path) -> None:
    published(tmp_path / "theirs", pairs=True)
    plan = imported(tmp_path / "theirs", tmp_path / "ours")
    tokens, _, seen = samples()
    with torch.no_grad():
        whole = ours(plan, tmp_path / "ours").outputs(tokens, None, None)

        def rank(tensor: TensorParallel) -> tuple[torch.Tensor, torch.Tensor]:
            found = ours(plan, tmp_path / "ours", tensor).outputs(tokens, None, None)
            return found.logits(), found.pairs

        for logits, pairs in run_ranks(2, rank):
            torch.testing.assert_close(logits[seen.bool()], whole.logits()[seen.bool()], rtol=0, atol=1e-5)
            torch.testing.assert_close(pairs, whole.pairs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"architectures": ["BertModel"]}, "which has other heads"),
        ({"is_decoder": True}, "is_decoder is not understood"),
        ({"rotary": 1}, "rotary is not understood"),
    ],
)
def test_what_is_not_bert_is_refused(change: dict[str, Any], said: str) -> None:
    config = {**BertConfig(**SMALL).to_dict(), "architectures": ["BertForMaskedLM"], **change}
    with pytest.raises(ConfigError, match=said):
        Bert().keys({key: value for key, value in config.items() if value is not None})


def test_a_decoder_is_of_another_family(tmp_path: Path) -> None:
    published(tmp_path / "theirs", pairs=False)
    plan = imported(tmp_path / "theirs", tmp_path / "ours")
    assert isinstance(choose_family(plan.model, {"bert": Bert()}), Bert)
