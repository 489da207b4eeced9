"""Components that `neox data` names on its command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neox_core.config.infer import INFER, data_backend
from neox_core.config.structure import structure_settings
from neox_core.hooks.component import path_of
from neox_core.plan.runfile import ComponentRef

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog


def files(vocab_file: str | None, merge_file: str | None, eod_token: str | None) -> dict[str, Any]:
    """The settings of a tokenizer that were given."""
    given = {"vocab_file": vocab_file, "merge_file": merge_file, "eod_token": eod_token}
    return {key: value for key, value in given.items() if value is not None}


def backend_of(catalog: Catalog, data_impl: str, prefix: str) -> ComponentRef:
    """The backend of the dataset at `prefix`; `infer` looks at its first bytes."""
    return component(catalog, "data backend", data_backend(prefix) if data_impl == INFER else data_impl, {})


def component(
    catalog: Catalog, kind: str, use: str, settings: dict[str, Any], *, complete: bool = True
) -> ComponentRef:
    """The component that `use` names. `complete`: its settings are all there, so that they can be checked."""
    entry = catalog.find(kind, use)
    found = entry.component
    if found.settings is not None and complete:
        structure_settings(found.settings, settings)
    cls = path_of(found.settings) if found.settings is not None else None
    plugin = entry.plugin
    return ComponentRef(kind, found.name, plugin.id, plugin.version, found.target, cls, settings)
