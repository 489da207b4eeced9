"""Every parameter and named feature of the documents has an owner, by its name, type and default.

ledger.toml of neox-gpt-neox is what the documents say; the numbers below are what this version does not
have yet.
"""

from collections import defaultdict
from typing import Any

import pytest
from neox_author.api import default_in_words, known_type_in_words
from neox_gpt_neox.api import known
from neox_reference import packages
from neox_reference.coverage import key_rows, ledger, states, total
from neox_reference.keys import Key, all_keys, own_keys
from neox_reference.older import older_spellings

from neox_core.config.schema.convert import InvalidError, convert
from neox_core.hooks.install import PACKAGES
from neox_core.hooks.loader import load_plugins

LEDGER = ledger()
PARAMETERS: dict[str, dict[str, Any]] = LEDGER["parameters"]
REGISTRY = load_plugins().registry
KEYS = all_keys(REGISTRY)
STATES = states(KEYS)

# Parameters and named features of the documents that this version does not have. Both may only go down.
PARAMETERS_KNOWN_ONLY = 1
FEATURES_KNOWN_ONLY = 0

# Where a name, a type or a default is not the documents', and why.
DEVIATIONS = {
    "aio.thread_count": "another name of intra_op_parallelism, as DeepSpeed calls it since 0.16.4",
    "zero_optimization": "a block whose stage is 0, where the documents have the switch of its first version",
    "zero_optimization.offload_param": "a block or nothing, not a switch",
    "zero_optimization.offload_optimizer": "a block or nothing, not a switch",
    "launcher": "by the hostfile: one host needs no pdsh",
    "distributed_backend": "by the device: a CPU has no nccl",
    "gradient_accumulation_steps": "follows from the batch sizes, else 1",
    "steps_per_print": "none: log-interval's line says more",
    "split": "a list of shares is taken beside the text of one",
    "comms_logger.prof_ops": "a list of text, of which only the engine's collectives are let pass",
    "scaled_upper_triang_masked_softmax_fusion": "unset: the machine decides",
    "scaled_masked_softmax_fusion": "unset: the machine decides",
    "bias_gelu_fusion": "unset: the machine decides",
    "bias_dropout_fusion": "unset: the machine decides",
}
DEVIATIONS |= {
    f"compression_training.{each}.different_groups.<group>.modules": "the documents' default is a sentence"
    for each in (
        "weight_quantization",
        "activation_quantization",
        "sparse_pruning",
        "row_pruning",
        "head_pruning",
        "channel_pruning",
    )
}

# Kinds of features that are names of components.
COMPONENTS = {
    "optimizer": "optimizer",
    "norm": "norm",
    "pos-emb": "position",
    "activation": "activation",
    "lr-decay-style": "lr schedule",
    "scheduler": "scheduler",
    "launcher": "launcher",
    "data-impl": "data backend",
    "tokenizer": "tokenizer",
    "monitor": "monitor",
    "sparse-attention-mode": "sparse layout",
}
CURRICULUM = "data_efficiency.data_sampling.curriculum_learning"
METRIC = f"{CURRICULUM}.curriculum_metrics.<metric>"
COMPRESSION = "compression_training"
# Kinds of features that are values of a key.
VALUES = {
    "param-sharing-style": "param_sharing_style",
    "distributed-backend": "distributed_backend",
    "pipe-partition-method": "pipe_partition_method",
    "zero-stage": "zero_optimization.stage",
    "offload-device": "zero_optimization.offload_optimizer.device",
    "grad-accum-dtype": "data_types.grad_accum_dtype",
    "sparsity": "sparsity",
    "sparse-attention-direction": "sparse_attention.attention",
    "random-ltd-model-type": "data_efficiency.data_routing.random_ltd.model_type",
    "random-ltd-hidden-state-order": "data_efficiency.data_routing.random_ltd.hidden_state_order",
    "curriculum-schedule": f"{METRIC}.schedule_type",
    "difficulty-type": f"{METRIC}.difficulty_type",
    "clustering-type": f"{METRIC}.clustering_type",
    "comet-mode": "comet.mode",
    "tag-validation": "checkpoint.tag_validation",
    "autotuning-metric": "autotuning.metric",
    "autotuning-tuner": "autotuning.tuner_type",
    "elasticity-version": "elasticity.version",
    "pruning-method": f"{COMPRESSION}.sparse_pruning.shared_parameters.method",
    "quantization-type": f"{COMPRESSION}.weight_quantization.shared_parameters.quantization_type",
    "rounding": f"{COMPRESSION}.weight_quantization.shared_parameters.rounding",
    "range-calibration": f"{COMPRESSION}.activation_quantization.shared_parameters.range_calibration",
}
WRITTEN = {
    "0.1": 0.1,
    "0.2": 0.2,
    "stage 0": 0,
    "stage 1": 1,
    "stage 2": 2,
    "stage 3": 3,
    "type:[regex]": "type:transformer",
}
# Features that a key switches on.
SWITCHES = {
    "hostfile": "hostfile",
    "NODE_SPEC[@NODE_SPEC ...]": "include",
    "deepy.py + YAML config": "launcher",
    "ZeRO-Offload": "zero_optimization.offload_optimizer",
    "ZeRO-Infinity": "zero_optimization.offload_param",
    "ZeRO++ hpZ": "zero_optimization.zero_hpz_partition_size",
    "ZeRO++ qwZ": "zero_optimization.zero_quantized_weights",
    "ZeRO++ qgZ": "zero_optimization.zero_quantized_gradients",
    "fp32": "fp16.enabled",
    "fp16": "fp16.enabled",
    "bf16": "bf16.enabled",
    "amp (Apex)": "amp.enabled",
    "dynamic loss scaling": "fp16.loss_scale",
    "random-LTD": "data_efficiency.data_routing.random_ltd",
    "data-efficiency curriculum": CURRICULUM,
    "legacy seqlen curriculum": "curriculum_learning",
    "Train/Samples/train_loss": "tensorboard.enabled",
    "Train/Samples/lr": "tensorboard.enabled",
    "Train/Samples/loss_scale": "tensorboard.enabled",
    "Train/Eigenvalues/ModelBlockParam_{i}": "eigenvalue",
    "Train/Samples/elapsed_time_ms_forward": "wall_clock_breakdown",
    "Train/Samples/elapsed_time_ms_backward": "wall_clock_breakdown",
    "Train/Samples/elapsed_time_ms_backward_inner": "wall_clock_breakdown",
    "Train/Samples/elapsed_time_ms_backward_allreduce": "wall_clock_breakdown",
    "Train/Samples/elapsed_time_ms_step": "wall_clock_breakdown",
    "universal checkpoint": "checkpoint.load_universal",
    "release checkpoint": "finetune",
    "deepspeed.comm.log_summary": "comms_logger.enabled",
    "flops profiler": "flops_profiler.enabled",
    "Megatron checkpointing": "checkpoint_activations",
    "DeepSpeed checkpointing": "deepspeed_activation_checkpointing",
    "ICT": "ict_load",
    "REALM": "block_data_path",
    "BERT": "bert_load",
    "FAISS block index": "faiss_use_gpu",
    "indexer job": "indexer_batch_size",
    "ADLR autoresume": "adlr_autoresume",
    "tiered splits": "split",
    "document-boundary resets": "reset_attention_mask",
} | {
    each: f"{COMPRESSION}.{each}"
    for each in (
        "layer_reduction",
        "weight_quantization",
        "activation_quantization",
        "sparse_pruning",
        "row_pruning",
        "head_pruning",
        "channel_pruning",
    )
}
FEATURES = [(kind, name) for kind, names in LEDGER["features"].items() for name in names]


def by_spelling() -> dict[str, list[Key]]:
    found: dict[str, list[Key]] = defaultdict(list)
    for key in KEYS:
        for path in key.spellings:
            found[path].append(key)
    return found


OWNERS = by_spelling()


def test_the_documents_are_all_here() -> None:
    assert len(PARAMETERS) == 461
    assert len(FEATURES) == 141


@pytest.mark.parametrize("path", PARAMETERS)
def test_a_parameter_has_an_owner_with_its_name_type_and_default(path: str) -> None:
    documented = PARAMETERS[path]
    owners = OWNERS[path]
    assert owners, f"nobody owns {path}: declare it in known_keys.toml, or in a section"
    assert path in DEVIATIONS or any(key.path == path for key in owners)
    aliases = {alias for key in owners for alias in key.aliases} | {rule.key for _, rule in older_spellings(REGISTRY)}
    block = path.rpartition(".")[0]
    for alias in documented.get("aliases", []):
        assert alias in aliases or f"{block}.{alias}".strip(".") in aliases or path in DEVIATIONS
    for key in owners:
        if path not in DEVIATIONS and key.part != "older spellings":
            if documented["type"] != "choice":
                assert key.type == known_type_in_words(documented["type"], ())
            if "default" in documented:
                assert key.default == default_in_words(documented["default"])


@pytest.mark.parametrize("path", [path for path, documented in PARAMETERS.items() if "choices" in documented])
def test_the_documented_choices_are_taken_or_known(path: str) -> None:
    kind = next((kind.name for kind in REGISTRY.kinds.values() if kind.key == path), None)
    for choice in PARAMETERS[path]["choices"]:
        if kind is None:
            assert all(accepts(key, WRITTEN.get(choice, choice)) for key in OWNERS[path] if key.field is not None)
        else:
            assert choice in (*REGISTRY.names(kind), *known().components.get(kind, {}))


def test_a_deviation_is_one() -> None:
    assert set(DEVIATIONS) <= set(PARAMETERS)


def test_what_is_implemented_is_not_declared_as_of_a_later_version() -> None:
    own = {path for key in own_keys(REGISTRY) for path in key.spellings} | {
        rule.key for _, rule in older_spellings(REGISTRY) if rule.key not in known().keys
    }
    twice = sorted(key.path for key in known().keys.values() if set(key.spellings) & own)
    older = sorted({rule.key for _, rule in older_spellings(REGISTRY)} & set(known().keys))
    assert not twice + older, f"remove from known_keys.toml of neox-gpt-neox: {', '.join(twice + older)}"
    for kind, names in known().components.items():
        there = sorted(set(names) & set(REGISTRY.names(kind))) if REGISTRY.kinds[kind].used else []
        assert not there, f"remove from [components.{kind}] of known_keys.toml of neox-gpt-neox: {', '.join(there)}"


def test_the_packages_of_keys_and_names_are_fresh() -> None:
    text = PACKAGES.read_text(encoding="utf-8")
    assert text == packages.document(REGISTRY), "run: python -m neox_reference.packages"


@pytest.mark.parametrize("key", known().keys.values(), ids=lambda key: key.path)
def test_a_key_of_a_later_version_is_declared_whole(key: Any) -> None:
    assert key.help.endswith(".")
    assert key.origin in {"gpt-neox", "megatron", "deepspeed"}
    assert key.changes in {"numerics", "speed", "output"}
    assert key.distribution.startswith("neox-")
    assert "choice" not in key.type or key.choices
    assert key.default is None or not key.choices or key.default in key.choices
    documented = PARAMETERS.get(key.path, {})
    assert key.type == documented.get("type", key.type)
    assert set(documented.get("choices", [])) <= set(key.choices)
    block = key.path.rpartition(".")[0]
    assert not block or block in STATES, f"the block {block} is declared too"


def feature_is_implemented(kind: str, name: str) -> bool:
    """Whether this version has it; fails when nobody owns it."""
    if name == "torch.optim.<name>":
        return bool({entry.plugin.id for entry in REGISTRY.entries("optimizer")} & {"neox-torch-optim"})
    if kind in COMPONENTS:
        component = COMPONENTS[kind]
        if name in REGISTRY.names(component):
            return REGISTRY.kinds[component].used
        assert name in known().components.get(component, {}), f"declare {name} in [components] of known_keys.toml"
        return False
    path = VALUES.get(kind) or SWITCHES.get(name) or "data_impl"
    owners = OWNERS[path]
    assert owners, f"nobody owns {path}"
    if kind in VALUES:
        return any(accepts(key, WRITTEN.get(name, name)) for key in owners)
    return STATES[owners[0].path] != "known only"


def accepts(key: Key, value: Any) -> bool:
    if key.field is None:
        assert f"`{value}`" in key.type, f"{value} is no choice of {key.path} in known_keys.toml"
        return False
    try:
        converted = convert(value, key.field.type, key.path, lambda problem: None)
        if key.field.attribute.validator is not None:
            key.field.attribute.validator(None, key.field.attribute, converted)
    except (InvalidError, ValueError):
        return False
    return True


def test_every_feature_has_an_owner_and_those_to_come_get_fewer() -> None:
    missing = [f"{kind}: {name}" for kind, name in FEATURES if not feature_is_implemented(kind, name)]
    assert len(missing) == FEATURES_KNOWN_ONLY, f"write FEATURES_KNOWN_ONLY = {len(missing)} in {__file__}"


def test_the_parameters_to_come_get_fewer() -> None:
    counted = total(key_rows(REGISTRY))
    assert counted.total == len(PARAMETERS)
    missing = counted.known_only
    assert missing == PARAMETERS_KNOWN_ONLY, f"write PARAMETERS_KNOWN_ONLY = {missing} in {__file__}"
