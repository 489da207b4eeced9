from neox_core.api import Component, hookimpl


@hookimpl
def neox_norms() -> list[Component]:
    return [
        Component(
            "layernorm",
            "neox_norms.layernorm:LayerNorm",
            "neox_norms.settings:LayerNormSettings",
            summary="Mean and variance, gain and bias (arXiv:1607.06450)",
            ops=(("layer_norm", "neox_norms.layernorm:layer_norm"),),
            planner="neox_norms.plan:layernorm",
        ),
        Component(
            "rmsnorm",
            "neox_norms.rmsnorm:RMSNorm",
            "neox_norms.settings:RMSNormSettings",
            summary="Root mean square and gain, no centring (arXiv:1910.07467)",
            ops=(("rms_norm", "neox_norms.rmsnorm:rms_norm"),),
            planner="neox_norms.plan:rmsnorm",
        ),
        Component(
            "scalenorm",
            "neox_norms.scalenorm:ScaleNorm",
            "neox_norms.settings:ScaleNormSettings",
            summary="L2 norm and one learned scalar (arXiv:1910.05895)",
            ops=(("scale_norm", "neox_norms.scalenorm:scale_norm"),),
            planner="neox_norms.plan:scalenorm",
        ),
    ]
