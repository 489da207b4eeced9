from neox_core.api import Component, hookimpl
from neox_norms.settings import LayerNormSettings, RMSNormSettings, ScaleNormSettings


@hookimpl
def neox_norms() -> list[Component]:
    return [
        Component(
            "layernorm",
            "neox_norms.layernorm:LayerNorm",
            LayerNormSettings,
            summary="Mean and variance, gain and bias (arXiv:1607.06450)",
        ),
        Component(
            "rmsnorm",
            "neox_norms.rmsnorm:RMSNorm",
            RMSNormSettings,
            summary="Root mean square and gain, no centring (arXiv:1910.07467)",
        ),
        Component(
            "scalenorm",
            "neox_norms.scalenorm:ScaleNorm",
            ScaleNormSettings,
            summary="L2 norm and one learned scalar (arXiv:1910.05895)",
        ),
    ]
