"""Offers Muon."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_optimizers() -> list[Component]:
    return [
        Component(
            "Muon",
            "neox_muon.optim:MatrixAndRest",
            "neox_muon.settings:MuonSettings",
            summary="Orthogonalised momentum for matrices, AdamW for the rest (arXiv:2502.16982)",
            zero_stages=(0, 1),
            whole_parameters=True,
            state_numbers=(2, 0),
        )
    ]
