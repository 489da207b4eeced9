from neox_core.api import Component, hookimpl

BIAS_GELU = (("bias_gelu", "neox_activations.gelu:bias_gelu"),)

GATED, PLAIN = "neox_activations.plan:gated", "neox_activations.plan:plain"


@hookimpl
def neox_activations() -> list[Component]:
    return [
        Component(
            "gelu",
            "neox_activations.gelu:Gelu",
            summary="x * Phi(x), by erf (arXiv:1606.08415)",
            ops=BIAS_GELU,
            planner=PLAIN,
        ),
        Component(
            "openai-gelu",
            "neox_activations.gelu:TanhGelu",
            summary="GELU by tanh, as in GPT-2 (arXiv:1606.08415)",
            ops=BIAS_GELU,
            planner=PLAIN,
        ),
        Component(
            "erf-gelu", "neox_activations.gelu:ErfGelu", summary="GELU in basic operations, for exports", planner=PLAIN
        ),
        Component(
            "geglu",
            "neox_activations.gated:GeGLU",
            summary="value * GELU(gate) (arXiv:2002.05202)",
            ops=(("geglu", "neox_activations.gated:geglu"),),
            planner=GATED,
        ),
        Component(
            "tanh-geglu",
            "neox_activations.gated:TanhGeGLU",
            summary="value * GELU(gate) by tanh, as in Gemma",
            planner=GATED,
        ),
        Component(
            "swiglu",
            "neox_activations.gated:SwiGLU",
            summary="value * SiLU(gate) (arXiv:2002.05202)",
            ops=(("swiglu", "neox_activations.gated:swiglu"),),
            planner=GATED,
        ),
        Component(
            "reglu", "neox_activations.gated:ReGLU", summary="value * max(gate, 0) (arXiv:2002.05202)", planner=GATED
        ),
        Component(
            "glu",
            "neox_activations.gated:SigmoidGLU",
            summary="value * sigmoid(gate) (arXiv:1612.08083)",
            planner=GATED,
        ),
        Component(
            "bilinear", "neox_activations.gated:Bilinear", summary="value * gate (arXiv:2002.05202)", planner=GATED
        ),
        Component("relu", "neox_activations.pointwise:ReLU", summary="max(x, 0)", planner=PLAIN),
        Component(
            "silu", "neox_activations.pointwise:SiLU", summary="x * sigmoid(x) (arXiv:1702.03118)", planner=PLAIN
        ),
        Component(
            "mish", "neox_activations.pointwise:Mish", summary="x * tanh(ln(1 + e^x)) (arXiv:1908.08681)", planner=PLAIN
        ),
        Component("softsign", "neox_activations.pointwise:Softsign", summary="x / (1 + |x|)", planner=PLAIN),
    ]
