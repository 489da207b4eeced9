"""Entry points that are modules made by the test."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest

from neox_core.api import hookimpl


@pytest.fixture
def point(monkeypatch: pytest.MonkeyPatch) -> Any:
    """point("neox-a", hook=function, ...): an entry point to a module with these hooks."""

    def make(name: str, **hooks: Any) -> EntryPoint:
        module = ModuleType(f"test_plugin_{name.replace('-', '_')}")
        for hook, function in hooks.items():
            function.__name__ = hook
            setattr(module, hook, hookimpl(function))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return EntryPoint(name, module.__name__, "neox.plugins")

    return make
