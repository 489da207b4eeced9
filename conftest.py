"""For all tests, of the core and of plugins."""

import subprocess

import pytest
import warm_start

warm_start.install()


@pytest.fixture
def started_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test of what processes import, or of their threads: none is a fork that has torch."""
    monkeypatch.setattr(subprocess.Popen, "_execute_child", warm_start.START.as_ever)
