"""Every command, fed with text that would steer a terminal: by a config, arguments, plugins, datasets, checkpoints."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner
from neox_author.testing import build, load_only
from safetensors.torch import save_file

from neox_core.cli.main import neox

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e"
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

PLUGIN = f"""
from attrs import frozen
from neox_core.api import Component, hookimpl, setting

EVIL = {EVIL!r}

@frozen
class Settings:
    evil: str = setting(EVIL, help="Help " + EVIL)

@hookimpl
def neox_norms():
    return [Component("evil", "neox_odd.parts:nothing", Settings, summary="Summary " + EVIL)]

@hookimpl
def neox_commands():
    return [Component("evil", "neox_odd.parts:command", summary="Summary " + EVIL)]

@hookimpl
def neox_kernels():
    return [Component("rms_norm.evil", "neox_odd.parts:nothing", summary="Summary " + EVIL)]
"""
PARTS = f"""
import click

@click.command()
def command():
    raise ValueError({EVIL!r})

raise_at_use = None
def __getattr__(name):
    raise ValueError({EVIL!r})
"""

# A command -> its arguments; folders and files of `place` in braces. In a process of its own where it needs torch.
COMMANDS: dict[str, tuple[str, ...]] = {
    "train": ("{config}", "--set", f"{EVIL}=1"),
    "config check": ("{config}",),
    "config coverage": (),
    "config diff": ("{config}", "{run}"),
    "config docs": (),
    "config explain": (EVIL,),
    "config migrate": ("{config}",),
    "config schema": (),
    "config show": ("{config}", "--set", f"norm={EVIL}"),
    "plugins check": (),
    "plugins info": ("evil",),
    "plugins new": (EVIL, "evil"),
    "plugins test": (EVIL,),
    "plugins list": (),
    "doctor": (),
    "tune": ("{config}", "--set", f"{EVIL}=1"),
    "elastic": ("{config}", "--set", f"{EVIL}=1"),
    "runs": ("{folder}",),
    "completion": (EVIL,),
    "eval": ("--load", "{checkpoints}", "--tasks", "piqa", "--task-folder", f"{{folder}}/no{EVIL}"),
    "report": ("{trained}",),
    "plan": ("{config}", "--set", f"{EVIL}=1"),
    "retrieval index": ("{config}", "--set", f"{EVIL}=1"),
    "retrieval search": (EVIL, "--load", f"{{folder}}/{EVIL}"),
    "retrieval evaluate": ("--held-out", "1", "--load", f"{{folder}}/{EVIL}"),
    "evil": (),
    "data index": ("{config}",),
    "kernels check": (EVIL,),
    "kernels bench": (EVIL,),
    "kernels tune": (EVIL,),
    "difficulty": ("{config}", "--out", f"{{folder}}/{EVIL}"),
    "checkpoint import-hf": ("{hf}", "--out", "{folder}/out"),
}
HEAVY: dict[str, tuple[str, ...]] = {
    "generate": ("--load", "{checkpoints}", "--prompt", EVIL),
    "checkpoint average": ("{checkpoints}", "--out", "{folder}/averaged"),
    "checkpoint export-peft": ("{checkpoints}", "--out", "{folder}/adapters"),
    "checkpoint export-hf": ("{checkpoints}", "--out", "{folder}/exported"),
    "checkpoint import-hf": ("{hf}", "--out", "{folder}/imported", "--family", "gpt_neox"),
    "data inspect": ("{data}", "--vocab-file", "{vocabulary}", "--tokenizer-type", "HFTokenizer", "--samples", "1"),
    "data merge": ("{data}", "--out", f"{{folder}}/{EVIL}/merged"),
    "data prepare": (f"{{folder}}/{EVIL}.txt", "--out", f"{{folder}}/{EVIL}/prepared"),
    "data train-tokenizer": (f"{{folder}}/{EVIL}.txt", "--out", f"{{folder}}/{EVIL}/learnt"),
    "data verify": ("{data}",),
    "kernels list": (),
    "checkpoint inspect": ("{neox}",),
    "checkpoint import": ("{neox}", "--out", "{folder}/continued"),
    "checkpoint import-neox": ("{neox}", "--out", "{folder}/continued"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("hostile")
    site = folder / "site"
    for name, version, listing in (
        ("neox-odd", "1.0", PLUGIN),
        ("neox-evil", "1\x1b[31m", f"raise ValueError({EVIL!r})"),
    ):
        package = site / name.replace("-", "_")
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "plugin.py").write_text(listing)
        (package / "parts.py").write_text(PARTS)
        info = site / f"{package.name}-1.0.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nKeywords: neox-api-1\n"
        (info / "METADATA").write_text(metadata, newline="")
        (info / "entry_points.txt").write_text(f"[neox.plugins]\nodd = {package.name}.plugin\n")
    evil = folder / EVIL
    evil.mkdir()
    keys = {EVIL: EVIL, "norm": EVIL, "hostfile": str(evil / "hosts"), "save": str(evil), "optimizer": {"type": EVIL}}
    (evil / "config.json").write_text(json.dumps(keys))
    (evil / "hosts").write_text(f"{EVIL} slots=no\n")
    entry = load_only("neox-data-indexed").find("data backend", "mmap")
    writer = entry.load()(build(entry)).create(evil / "data", 1000)
    writer.add_document([1, 2, 999])
    writer.close()
    (evil / "vocabulary.json").write_text(json.dumps({"version": EVIL, "model": {"type": EVIL}}))
    checkpoint = evil / "checkpoints" / f"step_{EVIL}"
    checkpoint.mkdir(parents=True)
    (checkpoint.parent / "latest").write_text(checkpoint.name)
    (checkpoint / "run.json").write_text(json.dumps({"plugins": {EVIL: EVIL}, EVIL: EVIL}))
    (checkpoint / "manifest.json").write_text(json.dumps({"format": 1, EVIL: [EVIL], "files": {EVIL: EVIL}}))
    neox_run = evil / "neox"
    (neox_run / f"global_step{EVIL}").mkdir(parents=True)
    (neox_run / "latest").write_text(f"global_step{EVIL}")
    (neox_run / f"global_step{EVIL}/mp_rank_00_model_states.pt").write_text(EVIL)
    trained = evil / "trained"
    trained.mkdir()
    (trained / "run.json").write_text(json.dumps({EVIL: EVIL}))
    hf = evil / "hf"
    hf.mkdir()
    config = {"model_type": EVIL, "architectures": [EVIL], "hidden_size": 8, "num_hidden_layers": 1, EVIL: 1}
    config |= {"num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 8, "max_position_embeddings": 8}
    (hf / "config.json").write_text(json.dumps(config))
    save_file({f"gpt_neox.{EVIL}": torch.zeros(1)}, hf / "model.safetensors")
    return {
        "folder": str(folder),
        "site": str(site),
        "config": str(evil / "config.json"),
        "data": str(evil / "data"),
        "vocabulary": str(evil / "vocabulary.json"),
        "checkpoints": str(checkpoint.parent),
        "run": str(checkpoint),
        "trained": str(trained),
        "hf": str(hf),
        "neox": str(neox_run),
    }


def words(command: str, arguments: tuple[str, ...], place: dict[str, str]) -> list[str]:
    return [*command.split(), *(each.format(**place) if each.startswith("{") else each for each in arguments)]


def require_harmless(code: int, out: str, err: str) -> None:
    said = out + err
    assert "Traceback" not in said, said
    assert code in range(7), said
    found = STEERING.search(said)
    assert found is None, said[max(0, found.start() - 300) : found.end() + 100]


def commands(command: click.Command, context: click.Context, *path: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, context, *path, name)
    else:
        yield " ".join(path)


def test_every_command_is_fed() -> None:
    assert {*commands(neox, click.Context(neox))} == {*COMMANDS, *HEAVY} - {"evil"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_light_command(place: dict[str, str], command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(place["site"])
    monkeypatch.setenv("XDG_CACHE_HOME", place["folder"])
    result = CliRunner().invoke(neox, words(command, COMMANDS[command], place))
    require_harmless(result.exit_code, result.stdout, result.stderr)
    if command not in ("config coverage", "config docs", "config schema"):
        assert re.search(r"\\x1b|\\u001b", result.output), result.output


@pytest.fixture(scope="module")
def heavy(place: dict[str, str]) -> dict[str, tuple[int, str, str]]:
    """What came of each heavy command; two at a time."""
    import os

    neox_ = str(Path(sys.executable).with_name("neox"))
    env = {**os.environ, "PYTHONPATH": place["site"], "XDG_CACHE_HOME": place["folder"]}
    Path(place["folder"], f"{EVIL}.txt").write_text(f"{EVIL}\n" * 50)
    left = [(command, [neox_, *words(command, arguments, place)]) for command, arguments in HEAVY.items()]
    done = {}
    while left:
        pair, left = left[:2], left[2:]
        started = {
            command: subprocess.Popen(
                argv, env=env, cwd=place["folder"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for command, argv in pair
        }
        for command, process in started.items():
            out, err = process.communicate(timeout=120)
            done[command] = process.returncode, out.decode(), err.decode()
    return done


@pytest.mark.parametrize("command", HEAVY)
def test_a_heavy_command(heavy: dict[str, tuple[int, str, str]], command: str) -> None:
    code, out, err = heavy[command]
    require_harmless(code, out, err)
    assert "\\x1b" in out + err, out + err
