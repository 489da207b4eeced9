"""Randomly initialised models of transformers: the same numbers here, and the same bits after a round trip."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve
from families import MODELS, MODERN, SIZES, family_of, imported_to, ours, roughened, tensors
from neox_author.testing import assert_light
from neox_checkpoints.importing import find_format, import_checkpoint
from neox_checkpoints.inspecting import describe
from neox_gpt.generation.rows import continue_ids
from neox_gpt.generation.sampling import Sampling
from neox_hf.export import choose_family, export_hf, logits_layer_by_layer
from neox_hf.plugin import neox_model_families
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from neox_core.checkpoint.read import CheckpointReader, read_weights
from neox_core.data.batches import build_tokenizer
from neox_core.errors import CheckpointError, ConfigError, NeoxError
from neox_core.hooks.component import load_path
from neox_core.hooks.loader import load_plugins
from neox_core.plan.exports import exports
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import RunPlan

Imported = tuple[nn.Module, RunPlan, Path, Path]


@pytest.fixture(scope="module", params=MODELS)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    """Their model, the plan, the folder they wrote and the folder we did; both in several files."""
    root = tmp_path_factory.mktemp("hf")
    torch.manual_seed(5)
    theirs = roughened(MODELS[request.param]())
    theirs.save_pretrained(root / "theirs", max_shard_size="40KB")
    plan = imported_to(root / "theirs", root / "ours", file_bytes=50_000)
    return theirs, plan, root / "theirs", root / "ours"


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(96, (3, 40), generator=torch.Generator().manual_seed(7))


def test_listing_is_light() -> None:
    assert_light("neox-hf")
    names = {component.name for component in neox_model_families()}
    assert names >= {"gpt_neox", "neox", *(name.split(" ")[0] for name in MODERN)}


def test_files_are_several_and_small(imported: Imported) -> None:
    _, _, theirs, out = imported
    assert len(list(theirs.glob("*.safetensors"))) > 2
    files = list((out / "step-00000000").glob("rank-*.weights.safetensors"))
    largest = max(weight.numel() * 4 for weight in read_weights(out / "step-00000000").values())
    assert len(files) > 2
    assert all(file.stat().st_size < 50_000 + largest + 4096 for file in files)


def test_logits_and_loss(imported: Imported, tokens: Tensor) -> None:
    theirs, plan, _, out = imported
    model = ours(plan, out).eval()
    with torch.no_grad():
        expected, got = theirs(tokens).logits, model.logits(tokens)
    assert expected.std() > 0.5
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    wide, exact = got.double().log_softmax(-1), expected.double().log_softmax(-1)
    divergence = F.kl_div(wide, exact, log_target=True, reduction="none").sum(-1)
    assert divergence.max() < 1e-8
    labels = tokens.roll(-1, 1)
    loss = F.cross_entropy(expected.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(model.loss(tokens, labels), loss, rtol=0, atol=1e-5)


@torch.no_grad()
def test_layer_by_layer_is_the_whole_model(imported: Imported, tokens: Tensor) -> None:
    """What an export is compared by, without a model in memory; a mixed-up layer would show."""
    theirs, plan, folder, out = imported
    theirs.set_attn_implementation("eager")
    found = family_of(theirs).logits(folder, tokens)
    torch.testing.assert_close(found, theirs(tokens).logits, rtol=0, atol=1e-6)
    own = logits_layer_by_layer(CheckpointReader(out / "step-00000000"), plan.model, 96, tokens)
    torch.testing.assert_close(own, ours(plan, out).eval().logits(tokens), rtol=0, atol=1e-6)


def test_one_step_of_an_optimizer(imported: Imported, tokens: Tensor) -> None:
    """Adam with an epsilon above the noise of two orders of summation: else a gradient of 1e-9 moves as far as any."""
    theirs, plan, folder, out = imported
    family, labels = family_of(theirs), tokens.roll(-1, 1)
    model = ours(plan, out).train()
    twin = type(theirs).from_pretrained(folder, dtype=torch.float32)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-3, eps=1e-4) for each in (model, twin)]
    model.loss(tokens, labels).backward()
    F.cross_entropy(twin(tokens).logits.flatten(0, 1), labels.flatten()).backward()
    for optimizer in optimizers:
        optimizer.step()
    twin.save_pretrained(out / "stepped")
    stepped, moved = load_file(out / "stepped" / "model.safetensors"), 0.0
    before, after = read_weights(out / "step-00000000"), dict(model.named_parameters())
    for rule in family.weights(plan.model):
        expected = rule.join([stepped[name] for name in rule.theirs])
        torch.testing.assert_close(after[rule.ours], expected, rtol=0, atol=1e-5)
        moved = max(moved, float((after[rule.ours].detach() - before[rule.ours]).abs().max()))
    assert moved > 9e-4


@torch.no_grad()
def test_the_same_64_tokens(imported: Imported, tokens: Tensor) -> None:
    theirs, plan, _, out = imported
    prompt = tokens[:1, :20]
    expected = theirs.generate(
        prompt, do_sample=False, max_new_tokens=64, eos_token_id=None, pad_token_id=0, attention_mask=prompt * 0 + 1
    )[0, 20:].tolist()
    tokenizer: Any = SimpleNamespace(vocab_size=96, eod=-1)
    greedy = Sampling(temperature=0.0)
    got = continue_ids(ours(plan, out), prompt[0].tolist(), tokenizer, max_new_tokens=64, sampling=greedy)
    assert list(got) == expected


def test_a_round_trip_keeps_every_bit(imported: Imported, tmp_path: Path) -> None:
    theirs, plan, folder, out = imported
    family = family_of(theirs)
    notes = export_hf(out / "step-00000000", plan, tmp_path / "exported", family, file_bytes=60_000)
    assert any("the same logits" in note for note in notes)
    given, written = tensors(folder), tensors(tmp_path / "exported")
    assert given.keys() == written.keys()
    assert all(torch.equal(given[name], written[name]) for name in given)
    again = imported_to(tmp_path / "exported", tmp_path / "again")
    assert again.model == plan.model
    first, second = read_weights(out / "step-00000000"), read_weights(tmp_path / "again" / "step-00000000")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    loaded = type(theirs).from_pretrained(tmp_path / "exported")
    assert loaded.config.num_hidden_layers == 2
    assert loaded.config.eos_token_id is None, "without a tokenizer no token ends a text, such as 2 of every llama"


QUICKSTART = Path(__file__).parents[3] / "configs/quickstart.yml"


def test_the_model_of_the_quick_start_has_a_family() -> None:
    resolved = prepare_run([QUICKSTART], catalog=load_plugins(), start=False)
    found = exports(resolved.plan.model, resolved.config, resolved.catalog.registry)
    assert [name for name, reason in found.items() if not reason] == ["neox"]


@torch.no_grad()
def test_transformers_loads_the_code_beside_the_weights(
    tmp_path: Path, tokens: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user of the export does; with padding at the left, and a batch of two lengths."""
    theirs = roughened(MODELS["rms norms in parallel, gated, biased"]())
    theirs.save_pretrained(tmp_path / "theirs")
    plan = imported_to(tmp_path / "theirs", tmp_path / "ours")
    export_hf(tmp_path / "ours/step-00000000", plan, tmp_path / "out", family_of(theirs))
    script = (
        "import sys, torch\nfrom transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "tokens = torch.load(sys.argv[2])\nmask = torch.ones_like(tokens)\nmask[0, :7] = 0\n"
        "rest = model(tokens[:1, 7:]).logits\npadded = model(tokens, attention_mask=mask,\n"
        "    position_ids=(mask.cumsum(-1) - 1).clamp(min=0)).logits[:1, 7:]\n"
        "torch.save((model(tokens).logits, rest, padded, type(model).__module__), sys.argv[3])\n"
    )
    torch.save(tokens, tmp_path / "tokens.pt")
    paths = [str(tmp_path / name) for name in ("out", "tokens.pt", "logits.pt")]
    env = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script, *paths], check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr
    logits, rest, padded, module = torch.load(tmp_path / "logits.pt")
    assert module.startswith("transformers_modules.")
    torch.testing.assert_close(logits, ours(plan, tmp_path / "ours").eval().logits(tokens), rtol=0, atol=1e-4)
    torch.testing.assert_close(padded, rest, rtol=0, atol=1e-4)


TEXT = "def größe(x):\n    return  [x, 'naïve', \"日本\"]  # <|end\n"


@pytest.mark.parametrize("kind", ["GPT2BPETokenizer", "HFTokenizer", "HFTokenizer with its config"])
def test_auto_tokenizer_reads_the_tokenizer_of_a_llama_export(tmp_path: Path, kind: str) -> None:
    theirs = MODELS["llama"]()
    theirs.save_pretrained(tmp_path / "theirs")
    imported_to(tmp_path / "theirs", tmp_path / "ours")
    entry = load_plugins().find("tokenizer", "GPT2BPETokenizer")
    files = entry.load().train(iter([TEXT * 9, Path(__file__).read_text()]), 400, tmp_path)
    keys = {"tokenizer-type": "GPT2BPETokenizer", "padded-vocab-size": None}
    keys |= {name.replace("_", "-"): str(tmp_path / file) for name, file in files.items()}
    end, begin = "<|endoftext|>", "<|endoftext|>"
    if kind != "GPT2BPETokenizer":
        vocab = entry.load()(entry.component.settings(**{key: str(tmp_path / file) for key, file in files.items()}))
        content = json.loads(vocab.to_json())
        (tmp_path / "hf").mkdir()
        keys = {"tokenizer-type": "HFTokenizer", "vocab-file": str(tmp_path / "hf/tokenizer.json")}
        if "config" in kind:
            begin = "<s>"
            content["added_tokens"].append({**content["added_tokens"][0], "id": 400, "content": "<s>"})
            told = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": end}
            (tmp_path / "hf/tokenizer_config.json").write_text(json.dumps(told))
        (tmp_path / "hf/tokenizer.json").write_text(json.dumps(content))
    rest = {"data-path": "none", "train-iters": 1, "train_micro_batch_size_per_gpu": 1, "seq-length": 96}
    rest["optimizer"] = {"type": "Adam", "params": {"lr": 1e-4}}
    (tmp_path / "rest.json").write_text(json.dumps(rest | keys))
    model = tmp_path / "ours/model.yml"
    model.write_text("\n".join(line for line in model.read_text().splitlines() if "padded-vocab" not in line))
    plan = prepare_run([model, tmp_path / "rest.json"], catalog=load_plugins(), start=False).plan
    notes = export_hf(tmp_path / "ours/step-00000000", plan, tmp_path / "out", load_path("neox_hf.llama:Llama")())
    assert not any("tokenizer" in note for note in notes)
    loaded, mine = AutoTokenizer.from_pretrained(tmp_path / "out"), build_tokenizer(plan)
    assert mine is not None
    assert loaded(TEXT, add_special_tokens=False)["input_ids"] == mine.encode(TEXT)
    assert loaded.decode(loaded(TEXT, add_special_tokens=False)["input_ids"]) == TEXT
    text = Path(__file__).read_text().splitlines(keepends=True)  # transformers takes special tokens out of a text
    lines = [line for line in text if begin not in line and end not in line][:200]
    found = loaded(lines, add_special_tokens=False)["input_ids"]
    assert found == [mine.encode(line) for line in lines]
    assert loaded.batch_decode(found) == [mine.decode(ids) for ids in found] == lines
    assert (loaded.eos_token, loaded.eos_token_id, loaded.bos_token) == (end, mine.eod, begin)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["eos_token_id"], config["bos_token_id"]) == (mine.eod, loaded.bos_token_id)


def broken(folder: Path, value: float) -> Path:
    model = roughened(MODELS["pythia"]())
    model.gpt_neox.layers[1].mlp.dense_h_to_4h.weight.data[:2] = value
    model.save_pretrained(folder)
    return folder


def test_weights_that_are_not_finite_are_not_imported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"up\.weight holds nan or inf: nothing is saved"):
        imported_to(broken(tmp_path / "theirs", torch.nan), tmp_path / "ours")


def test_logits_that_are_not_finite_are_named(tmp_path: Path) -> None:
    plan = imported_to(broken(tmp_path / "theirs", 3e38), tmp_path / "ours")
    family = load_path(neox_model_families()[0].target)()
    with pytest.raises(CheckpointError, match="neox gives logits that are not finite numbers"):
        export_hf(tmp_path / "ours/step-00000000", plan, tmp_path / "exported", family)


def test_the_family_that_has_a_model_is_found(imported: Imported) -> None:
    theirs, plan, _, _ = imported
    families = {component.name: load_path(component.target)() for component in neox_model_families()}
    chosen = choose_family(plan.model, families)
    expected = {"mistral": "llama"}.get(theirs.config.model_type, theirs.config.model_type)
    assert chosen is families[expected]


def test_the_commands(imported: Imported, tmp_path: Path) -> None:
    """As a user calls them; the model that comes back is that of `transformers`, and a config for training is there."""
    _, plan, folder, _ = imported
    if plan.model.norm.name != "rmsnorm" or plan.model.num_kv_heads != 2:
        return
    for command in (
        ["import-hf", str(folder), "--out", str(tmp_path / "in")],
        ["export-hf", str(tmp_path / "in"), "--out", str(tmp_path / "out")],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "neox_core", "checkpoint", *command], check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "wrote" in done.stdout
    given, written = tensors(folder), tensors(tmp_path / "out")
    assert all(torch.equal(given[name], written[name]) for name in given)
    assert "num-kv-heads: 2" in (tmp_path / "in" / "model.yml").read_text()
    assert not (tmp_path / "in" / ".import.json").exists()
    again = [sys.executable, "-m", "neox_core", "checkpoint", "export-hf", str(tmp_path / "in"), "--out", str(tmp_path)]
    refused = subprocess.run(again, check=False, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "exists already" in refused.stderr


def test_the_format_hf_starts_a_run_from_the_same_weights(imported: Imported, tmp_path: Path) -> None:
    """`neox checkpoint inspect` knows such a folder, and `import` writes a config that trains with --set load alone."""
    _, _, folder, ours = imported
    said, way = describe(folder, load_plugins()).lines
    assert "a model of transformers" in said
    assert "--format hf" in way
    if not said.endswith("llama"):
        return
    form = find_format(folder, load_plugins(), None)
    final, found = import_checkpoint(folder, tmp_path / "new", form, load_plugins())
    assert not found.has_optimizer
    expected, written = read_weights(ours / "step-00000000"), read_weights(final)
    assert {*expected} == {*written}
    assert all(torch.equal(written[name], weight) for name, weight in expected.items())
    assert (tmp_path / "new/config.yml").is_file()
    with pytest.raises(CheckpointError, match="leave out --config"):
        form.open(folder, [tmp_path / "c.yml"], optimizer=False)
    (tmp_path / "config.json").write_text("{}")
    assert form.recognises(tmp_path) is None


@pytest.mark.parametrize(
    ("family", "change", "said"),
    [
        ("llama", {"rope_scaling": {"rope_type": "longrope", "factor": 8.0}}, "positions 'longrope'"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "linear", "factor": 8.0, "short_mscale": 2}},
            "short_mscale of 'linear'",
        ),
        ("llama", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("llama", {"attention_chunk_size": 8}, "attention_chunk_size is not understood"),
        ("llama", {"pretraining_tp": 2}, "pretraining_tp is not understood"),
        ("qwen3", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types has 'chunked_attention'"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gpt_neox", {"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ("olmo2", {"qk_layernorm": False}, "qk_layernorm is not understood"),
    ],
)
def test_what_neox_does_not_have_is_refused(family: str, change: dict[str, Any], said: str) -> None:
    targets = {component.name: component.target for component in neox_model_families()}
    with pytest.raises(ConfigError, match=said):
        load_path(targets[family])().keys({**SIZES, **change})


def test_older_spellings_of_rotary_positions() -> None:
    targets = {component.name: component.target for component in neox_model_families()}
    keys = load_path(targets["gpt_neox"])().keys({**SIZES, "rotary_pct": 0.5, "rotary_emb_base": 5000})
    assert (keys["rotary-pct"], keys["rotary-emb-base"]) == (0.5, 5000.0)
    assert load_path(targets["llama"])().keys({**SIZES, "rope_theta": 5e5})["rotary-emb-base"] == 5e5


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda names: names.pop("model.norm.weight"), "no tensor model.norm.weight"),
        (lambda names: names.update({"model.extra": torch.ones(3)}), "model.extra is not in the model"),
        (lambda names: names.update({"model.norm.weight": torch.ones(3)}), "final_norm.weight would be"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, damage: Any, said: str) -> None:
    from safetensors.torch import save_file

    model = MODELS["llama"]()
    model.save_pretrained(tmp_path / "theirs")
    held = load_file(tmp_path / "theirs" / "model.safetensors")
    damage(held)
    save_file(held, tmp_path / "theirs" / "model.safetensors")
    with pytest.raises(NeoxError, match=said):
        imported_to(tmp_path / "theirs", tmp_path / "ours")
    assert not list((tmp_path / "ours").glob("step-*"))


@pytest.mark.parametrize(
    ("family", "change", "said"),
    [
        (
            "llama",
            {"norm": {"rms_norm_epsilon_in": "rms"}},
            'rms-norm-epsilon-in: "rms"; this family has "mean-square"',
        ),
        ("llama", {"position": {"rotary_pct": 0.5}}, "rotary-pct: 0.5; this family has 1.0"),
        ("olmo2", {}, 'qk-norm: null; this family has "all"'),
        ("olmo2", {"qk_norm": "all"}, 'norm-place: "before"; this family has "after"'),
        ("qwen2", {}, "use-bias-in-attn-linear: false; this family has true"),
    ],
)
def test_what_keeps_a_model_from_a_family_is_a_key_with_the_value_to_write(
    tmp_path: Path, family: str, change: dict[str, Any], said: str
) -> None:
    AutoModelForCausalLM.from_config(CONFIG_MAPPING["llama"](**SIZES)).save_pretrained(tmp_path / "theirs")
    model = imported_to(tmp_path / "theirs", tmp_path / "ours").model
    parts = {name: each for name, each in change.items() if isinstance(each, dict)}
    for name, more in parts.items():
        part = getattr(model, name)
        model = evolve(model, **{name: evolve(part, settings={**part.settings, **more})})
    model = evolve(model, **{name: each for name, each in change.items() if name not in parts})
    targets = {component.name: component.target for component in neox_model_families()}
    with pytest.raises(ConfigError, match=rf"{re.escape(said)}$"):
        load_path(targets[family])().config(model, 96)
