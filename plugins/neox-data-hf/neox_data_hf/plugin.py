"""What this distribution offers."""

from neox_core.api import Component, hookimpl
from neox_data_hf.settings import HFDataSettings


@hookimpl
def neox_data_backends() -> list[Component]:
    return [
        Component(
            "hf", "neox_data_hf.arrow:HFBackend", HFDataSettings, summary="A folder that `datasets` has saved to disk"
        ),
    ]
