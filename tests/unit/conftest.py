"""Plugins that exist for the tests only: small, light, and the same on every machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import neox_causal_lm.plugin
import neox_deepspeed.plugin
import neox_gpt.plugin
import neox_gpt_neox.plugin
import neox_plain.plugin
import neox_resume.plugin
import pytest
from attrs import frozen
from attrs import validators as v
from neox_launchers.settings import LauncherSettings
from neox_lr.settings import WarmupSettings

from neox_core.api import Component, ConfigSection, Kind, Problem, hookimpl, setting
from neox_core.hooks.guard import kept_waiting
from neox_core.hooks.loader import load_plugins


@pytest.fixture(autouse=True)
def any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of a config does not depend on the instructions of this machine."""
    monkeypatch.setattr("neox_plain.config.precision_rules.CPUINFO", Path("/nowhere"))


@frozen
class AdamSettings:
    lr: float = setting(1e-3, help="Peak.", check=v.gt(0))
    betas: tuple[float, float] = setting((0.9, 0.999), help="Decay rates.")
    eps: float = setting(1e-8, help="Epsilon.")
    weight_decay: float = setting(0.01, help="Decay.", check=v.ge(0))


@frozen
class PlainSettings:
    lr: float = setting(1e-3, help="Peak.", check=v.gt(0))


@frozen
class LayerNormSettings:
    layernorm_epsilon: float = setting(1e-5, help="Epsilon.")


@frozen
class RMSNormSettings:
    rms_norm_epsilon: float = setting(1e-8, help="Epsilon.", check=v.gt(0))


@frozen
class LayoutSettings:
    block: int = setting(16, help="Side of a block.", check=v.ge(1))


@frozen
class WindowSettings(LayoutSettings):
    window: int = setting(2, help="Blocks of a window.", check=v.ge(1), aliases=("num_local_blocks",))


@frozen
class BPESettings:
    vocab_file: str = setting(help="Vocabulary.")
    merge_file: str = setting(file=True, help="Merges.")


@frozen
class HFSettings:
    vocab_file: str = setting(help="tokenizer.json.")


@frozen
class WebSettings:
    web_token: str | None = setting(None, help="Secret.", secret=True)
    web_url: str = setting("http://localhost", help="Where to.")


@frozen
class BoardBlock:
    enabled: bool = setting(False, help="On.")
    folder: str | None = setting(None, help="Where to.")
    key: str | None = setting(None, help="Secret.", secret=True)


@frozen
class BoardSettings:
    board: BoardBlock = setting(BoardBlock(), help="A block that switches its monitor on.")

    @property
    def enabled(self) -> bool:
        return self.board.enabled


@frozen
class ExtraSection:
    extra_level: int = setting(1, help="A key of a plugin's section.", aliases=("extra-depth",))


def component(name: str, settings: type | None = None, **more: Any) -> Component:
    return Component(name, "math:floor", settings, **more)


class Everything:
    """One offer or more of each kind that a run needs."""

    @hookimpl
    def neox_kinds(self) -> tuple[Kind, ...]:
        return neox_gpt.plugin.neox_kinds()

    @hookimpl
    def neox_architectures(self) -> list[Component]:
        return neox_gpt.plugin.neox_architectures()

    @hookimpl
    def neox_callbacks(self) -> list[Component]:
        return neox_gpt.plugin.neox_callbacks()

    @hookimpl
    def neox_mixers(self) -> list[Component]:
        return neox_gpt.plugin.neox_mixers()

    @hookimpl
    def neox_feed_forwards(self) -> list[Component]:
        return neox_gpt.plugin.neox_feed_forwards()

    @hookimpl
    def neox_objectives(self) -> list[Component]:
        return neox_causal_lm.plugin.neox_objectives()

    @hookimpl
    def neox_engines(self) -> list[Component]:
        return [*neox_deepspeed.plugin.neox_engines(), *neox_plain.plugin.neox_engines()]

    @hookimpl
    def neox_optimizers(self) -> list[Component]:
        return [
            component("Adam", AdamSettings, zero_stages=(0, 1)),
            component(
                "Rowwise",
                AdamSettings,
                zero_stages=(0, 1),
                whole_parameters=True,
                devices=("cpu",),
                precisions=("fp32", "fp16"),
            ),
            component("AnyStage", AdamSettings, zero_stages=(0, 1, 2, 3)),
            component("CPU_Adam", AdamSettings, zero_stages=(0, 1, 2, 3)),
            component("Fixed"),
            component("Ramped", AdamSettings, scheduler="WarmupLR"),
            component("Sharded", AdamSettings, zero_stages=(1,)),
            component("Undecayed", PlainSettings, devices=("cpu", "cuda")),
        ]

    @hookimpl
    def neox_lr_schedules(self) -> list[Component]:
        return [
            Component("constant", "neox_lr.schedules:constant"),
            Component("cosine", "neox_lr.schedules:cosine"),
            Component("linear", "neox_lr.schedules:linear"),
        ]

    @hookimpl
    def neox_schedulers(self) -> list[Component]:
        return [Component("WarmupLR", "neox_lr.schedulers:warmup", WarmupSettings)]

    @hookimpl
    def neox_norms(self) -> list[Component]:
        return [component("layernorm", LayerNormSettings), component("rmsnorm", RMSNormSettings)]

    @hookimpl
    def neox_positions(self) -> list[Component]:
        return [component("learned"), component("sinusoidal")]

    @hookimpl
    def neox_activations(self) -> list[Component]:
        return [component("gelu"), component("openai-gelu"), component("geglu")]

    @hookimpl
    def neox_sparse_layouts(self) -> list[Component]:
        return [
            component("fixed", LayoutSettings),
            component("local", WindowSettings),
            component("variable", LayoutSettings),
        ]

    @hookimpl
    def neox_launchers(self) -> list[Component]:
        return [Component("local", "neox_launchers.local:local", LauncherSettings)]

    @hookimpl
    def neox_data_backends(self) -> list[Component]:
        return [
            component("mmap", magic=(".idx", b"MMIDIDX\x00\x00")),
            component("other", magic=(".idx", b"TNTIDX\x00\x00")),
            Component("infer", "neox_data_indexed.infer:data_backend", chooses=True),
        ]

    @hookimpl
    def neox_tokenizers(self) -> list[Component]:
        return [component("GPT2BPETokenizer", BPESettings), component("HFTokenizer", HFSettings)]

    @hookimpl
    def neox_stores(self) -> list[Component]:
        return [component("file")]

    @hookimpl
    def neox_monitors(self) -> list[Component]:
        return [
            component("board", BoardSettings),
            component("console"),
            component("far", needs=("neox_no_such_library",)),
            component("jsonl"),
            component("web", WebSettings),
        ]

    @hookimpl
    def neox_evaluators(self) -> list[Component]:
        return [component("counter")]

    @hookimpl
    def neox_dialects(self) -> list[Component]:
        return [Component("gpt-neox", "neox_gpt_neox.dialect:DIALECT")]

    @hookimpl
    def neox_config_sections(self) -> list[ConfigSection]:
        return [ConfigSection("extra", ExtraSection), *neox_gpt_neox.plugin.neox_config_sections()]

    @hookimpl
    def neox_check_config(self, config: Any) -> list[Problem]:
        if config.section(ExtraSection).extra_level > 9:
            return [Problem("is more than the plugin can do", "extra-level", "9 or less")]
        return []

    @hookimpl
    def neox_check_plan(self, config: Any, plan: Any) -> list[Problem]:
        return neox_resume.plugin.neox_check_plan(config, plan)


class Plugins:
    """Makes catalogues of plugins that are objects with hooks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, **plugins: Any) -> Any:
        """A catalogue of the given plugins, by name."""
        return load_plugins([self._point(name, plugin) for name, plugin in plugins.items()], {})

    def _point(self, name: str, plugin: Any) -> EntryPoint:
        module = ModuleType(f"neox_test_{name}")
        for hook in (each for each in dir(plugin) if each.startswith("neox_")):
            setattr(module, hook, getattr(plugin, hook))
        self._monkeypatch.setitem(sys.modules, module.__name__, module)
        return EntryPoint(name, module.__name__, "neox.plugins")


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    return Plugins(monkeypatch)


@pytest.fixture
def catalog(plugins: Plugins) -> Any:
    return plugins(everything=Everything())


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """The prefix of files that look like a dataset."""
    (tmp_path / "tokens.bin").write_bytes(b"")
    (tmp_path / "tokens.idx").write_bytes(b"MMIDIDX\x00\x00")
    return str(tmp_path / "tokens")


@pytest.fixture
def text(dataset: str) -> str:
    """A config that can be run, in flat YAML: tests append to it, or replace lines."""
    return f"""\
num-layers: 2
hidden-size: 64
num-attention-heads: 4
max-position-embeddings: 32
seq-length: 32
data-path: {dataset}
padded-vocab-size: 256
train-iters: 100
train_micro_batch_size_per_gpu: 4
optimizer:
  type: Adam
  params: {{lr: 1e-3}}
"""


@pytest.fixture
def everything() -> Everything:
    return Everything()


@pytest.fixture(scope="module")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    from neox_deepspeed.testing import process_group_of_one  # here, since tests of the light zone run without torch

    with process_group_of_one(tmp_path_factory.mktemp("store")):
        yield


@pytest.fixture
def crowded_core() -> Iterator[None]:
    """One core for this process and those that it starts, which three busy ones share."""
    if not kept_waiting():
        pytest.skip("the kernel does not say how long a process waited for a processor")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    busy = [sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"]
    others = [subprocess.Popen(busy, stdout=subprocess.PIPE) for _ in range(3)]
    try:
        for other in others:
            assert other.stdout
            other.stdout.readline()
        yield
    finally:
        os.sched_setaffinity(0, cores)
        for other in others:
            other.kill()
            other.communicate()
