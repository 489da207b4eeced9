"""Components that `neox data` names on its command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neox_core.config.compat.detect_data_format import INFER, data_backend
from neox_core.config.schema.convert import fields_of
from neox_core.config.schema.structure import structure_settings
from neox_core.errors import UsageError
from neox_core.hooks.component import path_of
from neox_core.plan.runfile import ComponentRef

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neox_core.hooks.catalog import Catalog


def files(vocab_file: str | None, merge_file: str | None, eod_token: str | None) -> dict[str, Any]:
    """The settings of a tokenizer that were given."""
    given = {"vocab_file": vocab_file, "merge_file": merge_file, "eod_token": eod_token}
    return {key: value for key, value in given.items() if value is not None}


def backend_of(catalog: Catalog, data_impl: str, prefix: str) -> ComponentRef:
    """The backend of the dataset at `prefix`; `infer` looks at its first bytes."""
    return component(catalog, "data backend", data_backend(prefix) if data_impl == INFER else data_impl, {})


def named_corpus(catalog: Catalog, sources: Sequence[str], *, more: bool) -> ComponentRef | None:
    """The corpus that the sources name, None when they are files. `more`: something is said of the files too."""
    known = {entry.component.name for entry in catalog.registry.entries("corpus")}
    named = next((source for source in sources if source in known), None)
    if named is None:
        return None
    if len(sources) > 1 or more:
        raise UsageError(
            f"`{named}` stands alone, without other sources and --json-key",
            hint=f"for a file or folder of that name write ./{named}",
        )
    return component(catalog, "corpus", named, {})


def component(
    catalog: Catalog, kind: str, use: str, settings: dict[str, Any], *, complete: bool = True
) -> ComponentRef:
    """The component that `use` names. `complete`: its settings are all there, so that they can be checked."""
    entry = catalog.find(kind, use)
    found = entry.component
    if found.settings is not None and complete:
        for each in fields_of(found.settings):
            if each.required and each.name not in settings:
                raise UsageError(f"{kind} {found.name} needs --{each.name.replace('_', '-')}", hint=each.info.help)
        structure_settings(found.settings, settings)
    cls = path_of(found.settings) if found.settings is not None else None
    plugin = entry.plugin
    return ComponentRef(kind, found.name, plugin.id, plugin.version, found.target, cls, settings)
