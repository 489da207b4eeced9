"""Older spellings of keys, and what each means today.

They are those of GPT-NeoX's first README and of DeepSpeed's first pages, and a few of later GPT-NeoX that say in one
word what a block says here. Aliases of a setting (`setting(aliases=...)`) need no rule.
"""

from typing import Any

from neox_gpt_neox.older import Assumed, Gone, Means, Moved, OlderSpelling


def _switch(key: str, to: str, value: Any, also: tuple[str, ...] = (), *, block: bool = False) -> Means:
    return Means(key, {True: (to, value), False: None}, also, block)


_IDLE = {
    "GPT-NeoX sets it by itself": (
        "world_size",
        "global_num_gpus",
        "rank",
        "is_pipe_parallel",
        "save_iters",
        "config_files",
        "curriculum_seqlen",
        "user_script",
    ),
    "optimizer.type says it": ("optimizer_type",),
    "zero_optimization says it": (
        "zero_stage",
        "zero_reduce_scatter",
        "zero_contiguous_gradients",
        "zero_reduce_bucket_size",
        "zero_allgather_bucket_size",
    ),
    "kernels are built for the machine that they run on": ("fused_kernels_build_path",),
    "train-iters and eval-iters set it": ("do_train", "do_valid", "do_test"),
    "other keys set the types": ("params_dtype", "dynamic_loss_scale"),
    "rotary-pct sets it": ("rotary_ndims", "rotary_save_freqs_buffer"),
    "bf16 has no loss scale": (
        "bf16.loss_scale",
        "bf16.loss_scale_window",
        "bf16.initial_scale_power",
        "bf16.hysteresis",
        "bf16.min_loss_scale",
    ),
    "`kernels` chooses what computes it": ("use_flashattn_swiglu",),
    "every log step has the norm of the gradient": ("log_grad_norm",),
    "a host that cannot be reached is named at the start": ("no_ssh_check",),
    "what is installed is written to the folder of the run": ("git_hash",),
    "GPT-NeoX reads it nowhere: layernorm has biases, rmsnorm has none": ("use_bias_in_norms",),
}
"""Reason -> keys of later GPT-NeoX that are accepted with every value."""

SPELLINGS: tuple[OlderSpelling, ...] = (
    _switch("geglu", "activation", "geglu"),
    _switch("openai_gelu", "activation", "openai-gelu"),
    _switch("rms_norm", "norm", "rmsnorm"),
    _switch("sinusoidal_pos_emb", "pos_emb", "sinusoidal"),
    _switch("rpe", "pos_emb", "rpe"),
    Gone("rpe_causal", "pos-emb: rpe is always causal", (True,), "remove it; the bias of this version looks back only"),
    _switch("onebitadam", "optimizer.type", "OneBitAdam"),
    _switch("cpu_torch_adam", "optimizer.type", "CPU_torch_adam"),
    _switch("cpu_optimizer", "optimizer.type", "CPU_Adam", also=("CPU_torch_adam",)),
    _switch("fp32_allreduce", "communication_data_type", "fp32"),
    _switch("disable_allgather", "zero_optimization.allgather_partitions", False),
    _switch("zero_optimization", "zero_optimization.stage", 1, block=True),
    _switch("zero_optimization.cpu_offload", "zero_optimization.offload_optimizer.device", "cpu"),
    _switch("zero_optimization.cpu_offload_param", "zero_optimization.offload_param.device", "cpu"),
    _switch("zero_optimization.cpu_offload_params", "zero_optimization.offload_param.device", "cpu"),
    Means("precision", {"fp16": ("fp16.enabled", True), "bfloat16": ("bf16.enabled", True), "fp32": None}),
    Gone("attention_type", "num-kv-heads says it", ("groupedquery", "multihead", "multiquery")),
    Gone("fp16.type", "chooses another precision than its block", ("fp16",), "bf16: {enabled: true} is bfloat16"),
    Gone("deepspeed_mpi", "the launcher tells the ranks their places", (False,), "launcher: openmpi starts by mpirun"),
    _switch("deepspeed_slurm", "launcher", "slurm", also=("SLURM", "Slurm")),
    Gone("deepspeed", "engine chooses what trains", (True,)),
    Gone(
        "compression_training.weight_quantization.shared_parameters.quantizer_kernel",
        "torch rounds the weights in a few operations a step",
        (False,),
    ),
    Gone("deepscale", "it came before the engines of today", (False,)),
    Gone("deepscale_config", "it came before the engines of today", ()),
    Moved("peak_theoretical_tflops", "peak_tflops"),
    Gone("lazy_mpu_init", "there is no outside caller that could complete the set-up", (False,)),
    Gone("DDP_impl", "DeepSpeed averages the gradients", ("local", "torch")),
    _switch("onnx_safe", "activation", "erf-gelu", also=("openai-gelu",)),
    Moved("batch_size", "train_micro_batch_size_per_gpu"),
    Moved("gas", "gradient_accumulation_steps"),
    Moved("clip_grad", "gradient_clipping"),
    Moved("optimizer.params.max_grad_norm", "gradient_clipping"),
    Moved("lr", "optimizer.params.lr"),
    Moved("adam_beta1", "optimizer.params.betas", 0, (0.9, 0.999)),
    Moved("adam_beta2", "optimizer.params.betas", 1, (0.9, 0.999)),
    Moved("adam_eps", "optimizer.params.eps"),
    Moved("loss_scale", "fp16.loss_scale"),
    Moved("loss_scale_window", "fp16.loss_scale_window"),
    Moved("min_scale", "fp16.min_loss_scale"),
    Moved("hysteresis", "fp16.hysteresis"),
    Moved("bf16.bf16", "bf16.enabled"),
    Moved("contigious_checkpointing", "contiguous_checkpointing"),
    _switch("use_wandb", "wandb.enabled", True),
    Moved("wandb_project", "wandb.project"),
    Moved("wandb_group", "wandb.group"),
    Moved("wandb_team", "wandb.team"),
    Gone("wandb_host", "the environment names the server", ("https://api.wandb.ai",), "set WANDB_BASE_URL instead"),
    Gone("wandb_run_name", "the environment names the run", (), "set WANDB_NAME instead"),
    Gone("wandb_init_all_ranks", "one run of wandb holds the values of all ranks", (False,)),
    _switch("use_comet", "comet.enabled", True),
    Moved("comet_workspace", "comet.workspace"),
    Moved("comet_project", "comet.project"),
    Moved("comet_experiment_name", "comet.experiment_name"),
    Moved("comet_tags", "comet.tags"),
    *(Gone(key, why, None) for why, keys in _IDLE.items() for key in keys),
    Assumed("tokenizer_type", "GPT2BPETokenizer", beside="vocab_file", by="GPT-NeoX"),
    Assumed("optimizer.type", "Adam", beside="lr", by="GPT-NeoX"),
    Assumed("wandb.project", "neox", beside="use_wandb", by="GPT-NeoX"),
)
"""In the order in which they are applied; last what GPT-NeoX assumes and this version does not."""
