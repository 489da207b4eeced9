"""What cannot work with a command that is asked whether to end. Runs: tests/e2e/test_autoresume.py."""

from pathlib import Path

import pytest
from neox_author.testing import check_callback, load_only

from neox_core.config.report import ProblemsError, render
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run

CONFIG = (
    "num-layers: 1\nhidden-size: 8\nnum-attention-heads: 1\nseq-length: 8\nmax-position-embeddings: 8\n"
    "padded-vocab-size: 16\ntrain-iters: 4\ntrain_batch_size: 1\ndevice: cpu\nnum_gpus: 1\n"
    "data-path: none\ndata-impl: mmap\noptimizer: {type: Adam, params: {lr: 1.0e-3}}\n"
)


def test_contract() -> None:
    settings = {"adlr_autoresume": True, "adlr_autoresume_interval": 40, "autoresume_command": ["false"]}
    check_callback(load_only("neox-gpt-neox"), "autoresume", **settings)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("adlr-autoresume=true", "save=s"), "error: autoresume-command: is required by adlr-autoresume"),
        (("adlr-autoresume=true", "autoresume-command=[echo]"), "error: save: is required by adlr-autoresume"),
        (
            ("adlr-autoresume=true", "autoresume-command=[echo]", "save=s", "autoresume-timeout=300"),
            "error: autoresume-timeout: 300 s are not below stall-timeout, 300 s",
        ),
        (("adlr-autoresume=true", "autoresume-command=['']", "save=s"), "error: autoresume-command: the first word"),
        (("adlr-autoresume-interval=0",), "error: adlr-autoresume-interval: must be"),
        (("adlr-autoresume-interval=5",), "note: adlr-autoresume-interval: does nothing without adlr-autoresume: true"),
        (("autoresume-command=[echo]",), "note: autoresume-command: does nothing without adlr-autoresume: true"),
    ],
)
def test_what_cannot_work_is_said_before_the_start(sets: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "run.yml").write_text(CONFIG)
    try:
        found = prepare_run([tmp_path / "run.yml"], sets, catalog=load_plugins(), start=False).notes
    except ProblemsError as error:
        found = error.problems
    assert said in render(list(found))
