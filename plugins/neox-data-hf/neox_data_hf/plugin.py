"""What this distribution offers."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_data_backends() -> list[Component]:
    return [
        Component(
            "hf",
            "neox_data_hf.arrow:HFBackend",
            "neox_data_hf.settings:HFDataSettings",
            summary="A folder that `datasets` has saved to disk",
        ),
    ]
