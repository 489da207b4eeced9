"""Tiny models of every form, built the way a rank builds them."""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
import pytest
import torch
from attrs import evolve
from neox_gpt.build import build_model
from neox_gpt.config.plan import GPTPlan
from neox_gpt.gpt import GPT
from neox_gpt.testing import check_activation, check_norm, check_position, example_decoder

from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import GROUP, Component
from neox_core.hooks.loader import load_plugins
from neox_core.hooks.registry import Entry, PluginInfo, Registry
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import ComponentRef

VOCAB = 96
EOD = 0


def ref(kind: str, name: str, target: str, settings_class: str | None = None, **settings: float) -> ComponentRef:
    return ComponentRef(kind, name, "neox-test", "0.1.0", target, settings_class, settings)


LAYERNORM = ref("norm", "layernorm", "neox_norms.layernorm:LayerNorm", "neox_norms.settings:LayerNormSettings")
RMSNORM = ref("norm", "rmsnorm", "neox_norms.rmsnorm:RMSNorm", "neox_norms.settings:RMSNormSettings")
GELU = ref("activation", "gelu", "neox_activations.gelu:Gelu")
SWIGLU = ref("activation", "swiglu", "neox_activations.gated:SwiGLU")
LEARNED = ref("position", "learned", "neox_positions.learned:Learned")
QUARTER_ROTARY = ref(
    "position", "rotary", "neox_positions.rotary:Rotary", "neox_positions.settings:RotarySettings", rotary_pct=0.25
)
RPE = ref(
    "position",
    "rpe",
    "neox_positions.rpe:RelativeBias",
    "neox_positions.settings:RelativeSettings",
    rpe_num_buckets=8,
    rpe_max_distance=12,
)
ALIBI = ref("position", "alibi", "neox_positions.alibi:Alibi")

PYTHIA = evolve(
    example_decoder(),
    num_layers=3,
    hidden_size=64,
    num_attention_heads=4,
    intermediate_size=256,
    seq_length=24,
    max_position_embeddings=32,
    norm=LAYERNORM,
    activation=GELU,
    position=QUARTER_ROTARY,
    padded_vocab_size=VOCAB,
    tie_embeddings=False,
    parallel_residual=True,
)

FORMS = {
    "pythia": PYTHIA,
    "serial": evolve(PYTHIA, parallel_residual=False),
    "post-norm residual": evolve(PYTHIA, parallel_residual=False, residual_post_norm=True),
    "gated, tied, learned": evolve(
        PYTHIA, parallel_residual=False, activation=SWIGLU, norm=RMSNORM, position=LEARNED, tie_embeddings=True
    ),
    "gpt-j, alibi": evolve(PYTHIA, shared_norm=True, position=ALIBI),
    "llama, rpe": evolve(
        PYTHIA,
        parallel_residual=False,
        activation=SWIGLU,
        norm=RMSNORM,
        position=RPE,
        num_kv_heads=2,
        attention_bias=False,
        mlp_bias=False,
    ),
    "windows, no positions, norms by head": evolve(
        PYTHIA,
        num_kv_heads=2,
        head_dim=24,
        qk_norm="head",
        windows=(5, None, 17),
        positions_of_layer=(True, False, True),
    ),
    "norms of all heads in windows": evolve(PYTHIA, qk_norm="shared", windows=(7,) * 3, norm=RMSNORM),
    "norms around, capped, scaled": evolve(
        PYTHIA,
        parallel_residual=False,
        tie_embeddings=True,
        activation=SWIGLU,
        norm=RMSNORM,
        norm_place="both",
        windows=(5, None, 5),
        attention_softcap=3.0,
        attention_multiplier=0.3,
        embedding_multiplier=8.0,
        logit_softcap=2.0,
    ),
    "norms after, a head with a bias": evolve(
        PYTHIA, parallel_residual=False, norm_place="after", attention_output_bias=False, head_bias=True
    ),
    "shared layers": evolve(PYTHIA, num_layers=4, num_unique_layers=2, param_sharing_style="spaced"),
}

Make = Callable[..., GPT]
Check = Callable[[str, Any], None]


@pytest.fixture
def make() -> Make:
    """`make("pythia", hidden_dropout=0.1)`: that form with changes, on the CPU; `dtype` and `seed` as well."""

    def build(form: str = "pythia", *, dtype: torch.dtype = torch.float32, seed: int = 1, **changes: object) -> GPT:
        plan = evolve(FORMS[form], **changes)
        context = BuildContext(torch.device("cpu"), dtype, Groups(None, None, 0, 1), seed)
        return build_model(plan, VOCAB, context, eod=EOD)

    return build


@pytest.fixture
def tokens() -> torch.Tensor:
    """int64 [batch 3, seq 24]."""
    return torch.randint(VOCAB, (3, 24), generator=torch.Generator().manual_seed(7))


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def plan() -> GPTPlan:
    return PYTHIA


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """`check(kind, target)`: run the check of that kind on a component made of `target`."""

    def run(kind: str, target: Any) -> None:
        module = ModuleType("neox_mutants")
        module.target = target
        monkeypatch.setitem(sys.modules, "neox_mutants", module)
        registry = Registry()
        plugin = PluginInfo("neox-mutants", "0.1.0", "neox_mutants")
        registry.add(Entry(kind, Component("mutant", "neox_mutants:target"), plugin))
        checks = {"norm": check_norm, "activation": check_activation, "position": check_position}
        checks[kind](Catalog(pluggy.PluginManager("neox"), registry, ()), "mutant")

    return run


MIXER_PAGE = Path(__file__).resolve().parents[3] / "docs/plugins/mixer.md"
FILE = re.compile(r"^`([\w./]+)`[^\n]*:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PACKAGE = "neox_gated_linear"


@pytest.fixture
def gated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The catalogue with the page's mixer, and its modules."""
    files = dict(FILE.findall(MIXER_PAGE.read_text("utf-8")))
    for path, text in {**files, f"{PACKAGE}/__init__.py": ""}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("", ".plugin", ".layer", ".size"):
        monkeypatch.delitem(sys.modules, f"{PACKAGE}{name}", raising=False)
    points = [EntryPoint(name, f"{name.replace('-', '_')}.plugin", GROUP) for name in ("neox-gated-linear", "neox-gpt")]
    catalog = load_plugins(points, {})
    layer = import_module("neox_gated_linear.layer")
    size = import_module("neox_gated_linear.size")

    return catalog, layer, size
