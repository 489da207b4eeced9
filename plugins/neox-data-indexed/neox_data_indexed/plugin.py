"""What this distribution offers."""

from typing import Any

from neox_core.api import Component, Problem, hookimpl


@hookimpl
def neox_data_backends() -> list[Component]:
    return [
        Component(
            "mmap",
            "neox_data_indexed.mmap:MmapBackend",
            "neox_data_indexed.settings:IndexedSettings",
            summary="Memory-mapped .bin/.idx of Megatron and GPT-NeoX",
            magic=(".idx", b"MMIDIDX\x00\x00"),
        ),
        Component(
            "lazy",
            "neox_data_indexed.legacy:LegacyBackend",
            "neox_data_indexed.settings:IndexedSettings",
            summary="The older .bin/.idx of fairseq, read from the file as needed",
            magic=(".idx", b"TNTIDX\x00\x00"),
        ),
        Component(
            "cached",
            "neox_data_indexed.legacy:CachedBackend",
            "neox_data_indexed.settings:IndexedSettings",
            summary="The older .bin/.idx of fairseq, held in memory",
        ),
        Component(
            "infer",
            "neox_data_indexed.infer:data_backend",
            summary="The backend that recognises the dataset, of any plugin",
            chooses=True,
        ),
    ]


@hookimpl
def neox_check_plan(config: Any, plan: Any) -> list[Problem]:
    from neox_data_indexed.prepared import other_vocabularies  # listing plugins needs none of it

    return list(other_vocabularies(config, plan.data))
