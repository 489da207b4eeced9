"""What this distribution offers."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_corpora() -> list[Component]:
    return [
        Component(
            "stdlib",
            "neox_corpora.stdlib:StandardLibrary",
            summary="The source text of this Python's standard library, about 12 MB",
        ),
        Component(
            "enwik8",
            "neox_corpora.enwik8:Enwik8",
            summary="The first 100 MB of Wikipedia in 2006 (mattmahoney.net/dc/textdata.html)",
        ),
        Component(
            "enwik9",
            "neox_corpora.enwik8:Enwik9",
            summary="The first 1000 MB of Wikipedia in 2006 (mattmahoney.net/dc/textdata.html)",
        ),
    ]
