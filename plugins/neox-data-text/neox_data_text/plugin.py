"""What this distribution offers."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_data_backends() -> list[Component]:
    return [
        Component(
            "text",
            "neox_data_text.source:TextBackend",
            "neox_data_text.settings:TextSettings",
            summary="Text files, tokenized when they are read",
        ),
    ]
