"""The components of the models that layouts.py trains, by the names that its cases give."""

from typing import Any

from neox_gpt.config.plan import SOFTMAX_ATTENTION, MixerFacts

from neox_core.plan.runfile import ComponentRef

SEQ = 16
"""Tokens of a sample."""

NORMS = {
    "layernorm": ("neox_norms.layernorm:LayerNorm", "neox_norms.settings:LayerNormSettings"),
    "rmsnorm": ("neox_norms.rmsnorm:RMSNorm", "neox_norms.settings:RMSNormSettings"),
    "scalenorm": ("neox_norms.scalenorm:ScaleNorm", "neox_norms.settings:ScaleNormSettings"),
}
ACTIVATIONS = {
    "gelu": ("neox_activations.gelu:Gelu", None),
    "swiglu": ("neox_activations.gated:SwiGLU", None),
}
POSITIONS = {
    "learned": ("neox_positions.learned:Learned", None),
    "sinusoidal": ("neox_positions.sinusoidal:Sinusoidal", None),
    "none": ("neox_positions.none:NoPosition", None),
    "rotary": ("neox_positions.rotary:Rotary", "neox_positions.settings:RotarySettings"),
    "rpe": ("neox_positions.rpe:RelativeBias", "neox_positions.settings:RelativeSettings"),
    "alibi": ("neox_positions.alibi:Alibi", None),
}
SPARSE = {
    "fixed": ("neox_sparse_attention.fixed:fixed", "neox_sparse_attention.settings:FixedSettings"),
    "bigbird": ("neox_sparse_attention.bigbird:bigbird", "neox_sparse_attention.settings:BigBirdSettings"),
}
MIXERS = {  # of every second layer, as docs/plugins/mixer.md has it; the test writes its modules into OUT
    "mixers": (
        SOFTMAX_ATTENTION,
        ComponentRef(
            "mixer",
            "gated-linear",
            "neox-test",
            "0",
            "neox_gated_linear.layer:GatedLinear",
            "neox_gated_linear.plugin:Settings",
        ),
    ),
    "mixer_facts": (
        MixerFacts(1, decodes=True, needs_positions=True),
        MixerFacts(1, decodes=True, needs_positions=False),
    ),
    "mixer_of_layer": (0, 1),
}
CONSTANT = ComponentRef("lr schedule", "constant", "neox-lr", "0", "neox_lr.schedules:constant")
ADAM = ComponentRef(
    "optimizer",
    "Adam",
    "neox-adam",
    "0",
    "neox_adam.optim:adam",
    "neox_adam.settings:AdamSettings",
    # The gradient of a key's bias is 0 but for rounding, which Adam would divide by itself.
    {"eps": 1e-5},
)

# Lengths grow to all of a sample in 4 steps, the tokens that the second layer sees in 6.
CURRICULUM = ComponentRef(
    "curriculum",
    "data_efficiency",
    "neox-curriculum",
    "0",
    "neox_curriculum.curriculum:DataEfficiency",
    "neox_curriculum.settings:DataEfficiencySettings",
    {
        "data_efficiency": {
            "enabled": True,
            "data_sampling": {
                "enabled": True,
                "curriculum_learning": {
                    "enabled": True,
                    "curriculum_metrics": {
                        "seqlen": {
                            "min_difficulty": 8,
                            "max_difficulty": SEQ,
                            "schedule_type": "fixed_linear",
                            "schedule_config": {"total_curriculum_step": 4, "difficulty_step": 4},
                        }
                    },
                },
            },
            "data_routing": {
                "enabled": True,
                "random_ltd": {
                    "enabled": True,
                    "random_ltd_layer_id": [1],
                    "random_ltd_schedule": {
                        "min_value": 4,
                        "max_value": SEQ,
                        "schedule_type": "fixed_linear",
                        "schedule_config": {"require_steps": 6, "seq_per_step": 2},
                    },
                },
            },
        }
    },
)
LORA = ComponentRef("model change", "lora", "neox-lora", "0", "neox_lora.lora:Lora", "neox_lora.settings:LoraSettings")
COMPRESSION = ComponentRef(
    "model change",
    "compression",
    "neox-compression",
    "0",
    "neox_compression.change:Compression",
    "neox_compression.settings:CompressionSettings",
)
OPTIMIZERS = {
    "Adam": (ADAM.target, ADAM.settings_class),
    "AdamW": ("neox_adam.optim:adamw", "neox_adam.settings:AdamWSettings"),
    "CPU_Adam": ("neox_adam.host:cpu_adam", "neox_adam.host_settings:CPUAdamSettings"),
    "CPU_torch_adam": ("neox_adam.host:cpu_torch_adam", "neox_adam.host_settings:CPUTorchAdamSettings"),
    "SM3": ("neox_sm3.optim:SM3", "neox_sm3.settings:SM3Settings"),
    "Lamb": ("neox_lamb.optim:Lamb", "neox_lamb.settings:LambSettings"),
    "Lion": ("neox_lion.optim:Lion", "neox_lion.settings:LionSettings"),
    "OneBitAdam": ("neox_onebit.adam:one_bit_adam", "neox_onebit.settings:OneBitAdamSettings"),
    "ZeroOneAdam": ("neox_onebit.zeroone:zero_one_adam", "neox_onebit.settings:ZeroOneAdamSettings"),
    "OneBitLamb": ("neox_onebit.lamb:one_bit_lamb", "neox_onebit.settings:OneBitLambSettings"),
    "Muon": ("neox_muon.optim:MatrixAndRest", "neox_muon.settings:MuonSettings"),
}
OPTIMIZERS |= {
    name: (f"neox_torch_optim.optim:{name.lower()}", f"neox_torch_optim.settings:{name}Settings")
    for name in ("SGD", "Adagrad", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam")
}

WHOLE = ("SM3", "Lamb", "Muon")


def chosen_optimizer(name: str | None, settings: dict[str, Any]) -> ComponentRef:
    return ADAM if name is None else ComponentRef("optimizer", name, "neox-test", "0", *OPTIMIZERS[name], settings)
