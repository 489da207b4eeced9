"""A plugin that works beside one that does not, in each of the ways in which one can fail."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, field, frozen


def offering(name: str, package: str, more: str = "") -> str:
    return f"""
{more}
from attrs import frozen
from neox_core.api import Component, hookimpl, setting

@frozen
class Settings:
    lr: float = setting(0.1, help="Peak learning rate.")

@hookimpl
def neox_optimizers():
    return [Component("{name}", "{package}.parts:thing", Settings, summary="made for a test")]
"""


def install(site: Any, name: str, component: str, more: str = "", **options: Any) -> None:
    package = name.replace("-", "_")
    site.install(name, offering(component, package, more), {f"{package}/parts.py": "thing = print\n"}, **options)


EVERY_KIND = """
from attrs import frozen
from neox_core.api import Component, hookimpl, setting

@frozen
class Settings:
    lr: float = setting(0.1, help="Peak learning rate.")

def offers(*names):
    return [Component(name, "neox_all.parts:launch") for name in names]

@hookimpl
def neox_optimizers():
    return [Component("Fine", "neox_all.parts:launch", Settings)]

@hookimpl
def neox_lr_schedules():
    return offers("linear", "cosine")

@hookimpl
def neox_launchers():
    return [*offers("local"), Component("odd", "neox_all.parts:odd")]

@hookimpl
def neox_data_backends():
    return [*offers("mmap"), Component("infer", "neox_all.parts:infer", chooses=True)]

@hookimpl
def neox_monitors():
    return offers("console", "jsonl")
"""
PARTS = """
from neox_core.api import Component, hookimpl

@hookimpl
def neox_norms():
    return [Component("layernorm", "neox_all.parts:launch")]

@hookimpl
def neox_positions():
    return [Component("learned", "neox_all.parts:launch")]

@hookimpl
def neox_activations():
    return [Component("gelu", "neox_all.parts:launch")]
"""
LAUNCH = """
from neox_core.contracts import LaunchCommand

def launch(plan, run_file, settings):
    return LaunchCommand(("true",))

def odd(plan, run_file, settings):
    return LaunchCommand(("python", run_file))

def infer(fields, registry):
    return "mmap"
"""
CONFIG = """\
num-layers: 2
hidden-size: 64
num-attention-heads: 4
max-position-embeddings: 32
seq-length: 32
data-path: tokens
data-impl: mmap
padded-vocab-size: 256
train-iters: 100
train_micro_batch_size_per_gpu: 4
optimizer: {type: Fine}
"""


def prepare(site: Any) -> None:
    site.install("neox-all", EVERY_KIND, {"neox_all/parts.py": LAUNCH})
    site.install("neox-parts", PARTS)
    site.install_ours(
        "neox-gpt",
        "plugin.py",
        "contracts.py",
        "change_contracts.py",
        "sparse_contracts.py",
        "ops.py",
        "config",
        "attention/__init__.py",
        "attention/size.py",
    )
    site.install_ours("neox-plain", "plugin.py", "api.py", "planner.py", "config")
    site.install_ours("neox-deepspeed", "plugin.py", "config")
    site.install_ours("neox-causal-lm", "plugin.py", "section.py", "planner.py")
    site.install_ours("neox-reference")
    work: Path = site.work
    using(site, "Fine")
    (work / "tokens.bin").write_bytes(b"")
    (work / "tokens.idx").write_bytes(b"MMIDIDX\x00\x00")


def using(site: Any, optimizer: str, more: str = "", file: str = "run.yml") -> None:
    (site.work / file).write_text(CONFIG.replace("Fine", optimizer) + more)


@frozen
class Situation:
    """What is installed beside neox-good, and what each command has to say of it."""

    setup: Callable[[Any], None]
    status: str
    cause: str
    hint: str
    site: Any = field(default=None, repr=False)


def broken(more: str = "", **options: Any) -> Callable[[Any], None]:
    return lambda site: install(site, "neox-bad", "Bad", more, **options)


UNKNOWN_HOOK = """
from neox_core.api import hookimpl
@hookimpl
def neox_optimisers():
    return []
"""
UNMARKED_HOOK = "def neox_monitors():\n    return []\n"

FAILING = {
    "import raises": Situation(
        broken("raise ValueError('boom,\\nin two lines')"), "broken", "ValueError: boom, in two lines", "author"
    ),
    "needs a missing library": Situation(
        broken("import no_such_library.part"), "broken", "No module named 'no_such_library'", "install no_such_library"
    ),
    "raises SystemExit": Situation(broken("import sys; sys.exit(0)"), "broken", "calls sys.exit(0)", "author"),
    "raises another BaseException": Situation(
        broken("raise GeneratorExit('gone')"), "broken", "GeneratorExit: gone", "author"
    ),
    "leaves a thread": Situation(
        broken("import threading, time; threading.Thread(target=time.sleep, args=(1e6,)).start()"),
        "broken",
        "neox-bad starts a thread while it is being listed",
        "Component(target=...)",
    ),
    "leaves a thread and hides that it may not": Situation(
        broken(
            "import threading, time\n"
            "try: threading.Thread(target=time.sleep, args=(1e6,)).start()\n"
            "except BaseException: pass"
        ),
        "broken",
        "neox-bad starts a thread while it is being listed",
        "Component(target=...)",
    ),
    "calls os._exit": Situation(
        broken("import os; os._exit(0)"),
        "broken",
        "neox-bad ends the process by os._exit while it is being listed",
        "Component(target=...)",
    ),
    "forks": Situation(
        broken("import os; os.fork()"),
        "broken",
        "neox-bad forks the process while it is being listed",
        "Component(target=...)",
    ),
    "imports torch while listed": Situation(
        broken("import torch"), "broken", "neox-bad imports torch while it is being listed", "Component(target=...)"
    ),
    "imports torch and hides that it may not": Situation(
        broken("try:\n    import torch\nexcept Exception:\n    torch = None"),
        "broken",
        "neox-bad imports torch while it is being listed",
        "Component(target=...)",
    ),
    "unknown hook": Situation(
        broken(UNKNOWN_HOOK),
        "broken",
        "has a hook neox_optimisers that neither this core nor an installed plugin defines",
        "did you mean neox_optimizers?",
    ),
    "unmarked hook": Situation(broken(UNMARKED_HOOK), "broken", "neox_monitors is not marked as a hook", "@hookimpl"),
    "another api version": Situation(
        broken(keywords="other, neox-api-9"),
        "incompatible",
        "is made for plugin api 9; this core has api 1",
        "try another version of neox-bad: install neox-bad from its author",
    ),
    "no api keyword": Situation(
        broken(keywords=None), "incompatible", "declares no plugin api", 'keywords = ["neox-api-1"]'
    ),
    "entry point to nowhere": Situation(
        broken(entry_points={"bad": "neox_bad.nowhere"}), "broken", "No module named 'neox_bad.nowhere'", "neox"
    ),
    "malformed entry point": Situation(broken(entry_points={"bad": "???"}), "broken", "Error", "author"),
    "second entry point fails": Situation(
        lambda site: site.install(
            "neox-bad",
            offering("Bad", "neox_bad"),
            {"neox_bad/parts.py": "thing = print", "neox_bad/second.py": "1 / 0"},
            entry_points={"bad": "neox_bad.plugin", "second": "neox_bad.second"},
        ),
        "broken",
        "ZeroDivisionError: division by zero",
        "author",
    ),
}


@pytest.fixture
def good(site: Any) -> Any:
    install(site, "neox-good", "Good")
    return site


@pytest.fixture(params=FAILING.values(), ids=FAILING.keys())
def failing(request: pytest.FixtureRequest, good: Any) -> Situation:
    """A site with neox-good, and neox-bad, which would offer the optimizer "Bad" if it did not fail."""
    request.param.setup(good)
    return evolve(request.param, site=good)


@pytest.fixture(name="offering")
def offering_fixture() -> Callable[..., str]:
    return offering


@pytest.fixture(name="install")
def install_fixture() -> Callable[..., None]:
    """install(site, distribution, optimizer, code that comes first, **options of Site.install)."""
    return install


@pytest.fixture(name="prepare")
def prepare_fixture() -> Callable[[Any], None]:
    """prepare(site): install what a run needs of every kind, and write run.yml and its dataset."""
    return prepare


@pytest.fixture(name="using")
def using_fixture() -> Callable[..., None]:
    """using(site, optimizer, more lines, file): write a config with that optimizer."""
    return using
