"""What a run is, decided once on the host: the classes of a plan.

Every class is frozen and holds plain values, so a plan compares, hashes to a digest, and reads the same on every rank.
"""

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, Literal

from attrs import field, frozen

from neox_core.plan.component import ComponentRef
from neox_core.plan.source import CONTENTS, SAMPLES, SCHEDULE, SETTING, SHAPES, START, of

FORMAT = 1


@frozen
class RecomputePlan:
    """Activation checkpointing. layers: consecutive ones of which the input alone is kept. distribute: each
    tensor-parallel rank keeps a part of it. The others are options of DeepSpeed's function and act where `deepspeed` is
    True; num_checkpoints: segments of the model.
    """

    layers: int = field(metadata=of("checkpoint_num_layers"))
    distribute: bool = field(default=False, metadata=of("distribute_checkpointed_activations"))
    deepspeed: bool = field(default=False, metadata=of("deepspeed_activation_checkpointing"))
    partition: bool = field(
        default=False, metadata=of("partition_activations", "activation_checkpointing.partition_activations")
    )
    contiguous: bool = field(
        default=False,
        metadata=of("contiguous_checkpointing", "activation_checkpointing.contiguous_memory_optimization"),
    )
    num_checkpoints: int | None = field(default=None, metadata=of(derived="num-layers / checkpoint-num-layers"))
    in_cpu: bool = field(default=False, metadata=of("checkpoint_in_cpu", "activation_checkpointing.cpu_checkpointing"))
    synchronize: bool = field(
        default=False, metadata=of("synchronize_each_layer", "activation_checkpointing.synchronize_checkpoint_boundary")
    )
    profile: bool = field(default=False, metadata=of("profile_backward", "activation_checkpointing.profile"))


@frozen
class KernelPlan:
    """What is asked for an op. asked: "auto", "fused" (any kernel), or the name of one.

    offers: kernels in the order of preference. key: the config key that asks, for messages; "" where none does.
    reference: import path of what the kernels are equal to.
    """

    op: str = field(metadata=of(derived="kernels"))
    asked: str = field(metadata=of(derived="kernels"))
    key: str = field(metadata=of(derived="kernels"))
    offers: tuple[ComponentRef, ...] = field(metadata=of(derived="kernels"))
    reference: str = field(default="", metadata=of(derived="kernels"))


@frozen(kw_only=True)
class ModelPlan:
    """What every architecture's plan has; the plan class of its planner adds its own.

    num_layers: passes through a layer. padded_vocab_size: rows of the embedding; None: from the tokenizer, rounded up.
    recompute: None: keep activations.
    kernels: for each op that a kernel may compute; ops that are not named are computed by their references.
    """

    num_layers: int
    seq_length: int
    padded_vocab_size: int | None = field(metadata=of("padded_vocab_size", apart=SHAPES))
    make_vocab_size_divisible_by: int = field(metadata=of("make_vocab_size_divisible_by", apart=SHAPES))
    recompute: RecomputePlan | None = field(default=None, metadata=of("checkpoint_activations"))
    kernels: tuple[KernelPlan, ...] = ()

    def in_short(self) -> str:
        """The size of the model, in a few words."""
        return f"{self.num_layers} layers"

    def in_words(self) -> str:
        """What the model is made of, in one line."""
        return f"{self.in_short()}, sequence {self.seq_length}"

    @classmethod
    def shaping(cls, model: Mapping[str, Any]) -> dict[str, Any]:
        """What gives the weights their names and shapes, by the words of a message; None where it is not known.

        model: a plan of this class in plain values. A stored one may lack any of them, or hold something else.
        """
        return {"num-layers": model.get("num_layers"), "padded-vocab-size": model.get("padded_vocab_size")}

    def exported(self, config: Any) -> "ModelPlan":
        """The model that an export of a run has. config: of the plan. Raises ConfigError where there can be none."""
        return self

    def adds(self, name: str) -> bool:
        """Whether `finetune` may start with a parameter, by its name, that the loaded checkpoint does not have."""
        return False

    def trained(self) -> Callable[[str], bool]:
        """Whether a parameter is trained, by its name. Of a rank: it may load components."""
        return lambda name: True


@frozen
class BatchPlan:
    """train_batch = micro_batch * gradient_accumulation * data_parallel, in samples."""

    micro_batch: int = field(metadata=of("train_micro_batch_size_per_gpu", derived="train_batch_size", apart=SAMPLES))
    gradient_accumulation: int = field(
        metadata=of("gradient_accumulation_steps", derived="the batch sizes, else 1", apart=SAMPLES)
    )
    data_parallel: int = field(metadata=of(derived="ranks / (model-parallel-size x pipeline stages)"))
    train_batch: int = field(
        metadata=of("train_batch_size", derived="micro-batch x accumulation x data-parallel ranks", apart=SAMPLES)
    )
    ramp: tuple[int, int, int] | None = field(default=None, metadata=of("rampup_batch_size", apart=SAMPLES))

    def samples_before(self, step: int) -> int:
        """Samples of the run before a step, counted from 0. After c of them, a step of a ramp [first, growth, length]
        has first + growth x floor(c x increments / length), as in Megatron-LM.
        """
        stages = self._stages()
        begin, samples, batch = stages[bisect(stages, step, key=itemgetter(0)) - 1]
        return samples + (step - begin) * batch

    def step_at(self, samples: int) -> int:
        """The step that begins after so many samples."""
        stages = self._stages()
        begin, before, batch = stages[bisect(stages, samples, key=itemgetter(1)) - 1]
        return begin + (samples - before) // batch

    def passes_before(self, step: int) -> int:
        """Micro-batches of each rank before a step."""
        if self.ramp is None:
            return step * self.gradient_accumulation
        return self.samples_before(step) // (self.micro_batch * self.data_parallel)

    def passes(self, step: int) -> int:
        """Micro-batches that each rank adds up in a step."""
        return self.passes_before(step + 1) - self.passes_before(step)

    def _stages(self) -> Sequence[tuple[int, int, int]]:
        """(first step, samples before it, samples of a step) of each batch size, rising."""
        return ((0, 0, self.train_batch),) if self.ramp is None else _stages(*self.ramp, self.train_batch)


@cache
def _stages(first: int, growth: int, length: int, last: int) -> Sequence[tuple[int, int, int]]:
    increments, step, samples, stages = (last - first) // growth, 0, 0, []
    for increment in range(increments):
        batch, left = first + increment * growth, (increment + 1) * length - samples * increments
        steps = max(0, -(-left // (batch * increments)))
        stages += [(step, samples, batch)] if steps else []
        step, samples = step + steps, samples + steps * batch
    return (*stages, (step, samples, last))


@frozen
class DataSource:
    """One of several datasets that are blended. `weight`: of its samples, relative to the others'."""

    prefix: str = field(metadata=of(apart=CONTENTS))
    weight: float = field(metadata=of(derived="the weights beside the paths"))


@frozen
class DataPlan:
    """`prefix` without .bin/.idx; `split` as three shares of the documents that add up to 1.

    train, valid, test: datasets of their own for each, blended; then `prefix` and `split` are not used. sampler_alpha:
    not None: the weights follow from the numbers of documents, to this power.
    """

    prefix: str | None = field(metadata=of("data_path", apart=CONTENTS))
    split: tuple[float, float, float]
    backend: ComponentRef = field(
        metadata=of(kind="data backend", derived="the first bytes of the dataset", apart=CONTENTS)
    )
    tokenizer: ComponentRef | None = field(metadata=of(kind="tokenizer", apart=CONTENTS))
    num_workers: int
    train: tuple[DataSource, ...] = field(default=(), metadata=of("train_data_paths", "train_data_weights"))
    valid: tuple[DataSource, ...] = field(default=(), metadata=of("valid_data_paths", "valid_data_weights"))
    test: tuple[DataSource, ...] = field(default=(), metadata=of("test_data_paths", "test_data_weights"))
    sampler_alpha: float | None = field(default=None, metadata=of("weighted_sampler_alpha", "weight_by_num_documents"))

    @property
    def has_test(self) -> bool:
        """Whether there are documents to test on."""
        return bool(self.test) if self.train else self.split[2] > 0


@frozen
class OptimPlan:
    """Steps are optimizer steps. `zero_stage` from 0 to 3. whole_parameters, uses: of the optimizer's Component."""

    optimizer: ComponentRef = field(metadata=of(kind="optimizer"))
    schedule: ComponentRef = field(metadata=of(kind=("scheduler", "lr schedule"), apart=SCHEDULE))
    lr: float = field(metadata=of("optimizer.params.lr", apart=SCHEDULE))
    min_lr: float = field(metadata=of("min_lr", apart=SCHEDULE))
    warmup_steps: float = field(metadata=of(derived="warmup x the steps of the decay", apart=SCHEDULE))
    decay_steps: int = field(metadata=of("lr_decay_iters", derived="train-iters", apart=SCHEDULE))
    weight_decay: float = field(metadata=of("optimizer.params.weight_decay", "weight_decay", apart=SETTING))
    gradient_clipping: float
    zero_stage: int = field(metadata=of("zero_optimization.stage"))
    whole_parameters: bool = field(default=False, metadata=of(derived="the optimizer"))
    uses: tuple[str, ...] = field(default=(), metadata=of(derived="the optimizer"))


@frozen
class PrecisionPlan:
    """dtype: of the model's weights and matmuls; autocast: of the matmuls only, the weights stay fp32."""

    dtype: Literal["fp32", "bf16", "fp16"] = field(metadata=of("fp16.enabled", "bf16.enabled"))
    autocast: Literal["bf16"] | None = field(metadata=of("torch_autocast.enabled", "amp.enabled"))
    fp16_lm_cross_entropy: bool = False

    @property
    def bytes_each(self) -> int:
        """Of a weight, and of an activation."""
        return 4 if self.dtype == "fp32" else 2


@frozen
class TrainPlan:
    """Lengths and intervals in optimizer steps.

    max_skipped_steps: in a row, where steps may be left out at all. stall_timeout_s: for how long a rank may make no
    progress in a step; 0: as long as it takes.
    """

    train_iters: int = field(metadata=of("train_iters", apart=SCHEDULE))
    exit_interval: int | None
    eval_interval: int
    eval_iters: int
    log_interval: int
    seed: int
    on_nonfinite_loss: Literal["stop", "skip"]
    max_skipped_steps: int
    stall_timeout_s: int = field(metadata=of("stall_timeout"))
    peak_tflops: float | None
    sample_prompt: str | None


@frozen
class StorePlan:
    """A store that `save` or `load` names. folder: on each host, for the files that are on their way."""

    url: str = field(metadata=of("save", "load", apart=START))
    component: ComponentRef = field(metadata=of("save", "load", kind="store", apart=START))
    folder: str = field(metadata=of(derived="--run-dir, or the name of the config", apart=START))


@frozen
class CheckpointPlan:
    """resume: "must" = `load` has to hold a checkpoint; "auto" = resume from `save`, else `load`, else start at step 0.

    load: where to resume from; with "auto" it is `save` where the config names no other folder.

    whole_weights: store a weight in one piece also where ranks hold parts of it. load_masters: resume from fp32 copies
    of weights, not from the rounded ones. extra_save: steps to save at besides those of the interval. schedules: those
    of this environment by identity, where that of a checkpoint is to count, which names one of them. stores: of `save`
    and `load`, where they are addresses. background: write checkpoints while the run trains; None: where that pays.
    """

    save: str | None
    save_interval: int | None
    load: str | None = field(metadata=of("load", apart=START))
    resume: Literal["must", "auto"] = field(metadata=of(derived="the command line"))
    keep_last: int | None = field(metadata=of("keep_last_n_checkpoints"))
    finetune: bool = field(metadata=of("finetune", apart=START))
    load_optimizer: bool = field(metadata=of("no_load_optim", "finetune", apart=START))
    load_rng: bool = field(metadata=of("no_load_rng", "finetune", apart=START))
    save_optimizer: bool = field(metadata=of("no_save_optim"))
    save_rng: bool = field(metadata=of("no_save_rng"))
    schedule_from: Literal["must-match", "config", "checkpoint"] = field(
        metadata=of("override_lr_scheduler", "use_checkpoint_lr_scheduler", apart=START)
    )
    whole_weights: bool = field(
        default=False, metadata=of("zero_optimization.stage3_gather_16bit_weights_on_model_save")
    )
    load_masters: bool = field(default=True, metadata=of("zero_optimization.load_from_fp32_weights", apart=START))
    extra_save: tuple[int, ...] = field(default=(), metadata=of("extra_save_iters"))
    schedules: dict[str, ComponentRef] | None = field(default=None, metadata=of(derived="the installed plugins"))
    stores: tuple[StorePlan, ...] = field(default=(), metadata=of("save", "load", apart=START))
    background: bool | None = field(default=False, metadata=of("checkpoint.background"))

    @property
    def save_folder(self) -> str | None:
        """`save`, where that is a local folder."""
        return None if any(each.url == self.save for each in self.stores) else self.save


@frozen
class Host:
    """One machine and how many ranks it runs. devices: which of its devices these take; empty: the first `slots`."""

    name: str = field(metadata=of(derived="cluster.hosts"))
    slots: int = field(metadata=of(derived="cluster.hosts"))
    devices: tuple[int, ...] = field(default=(), metadata=of(derived="cluster.hosts"))


@frozen
class ClusterPlan:
    """Where the ranks run. tensor_parallel and pipeline_parallel are ranks; 1 = off. partition: of layers into stages.

    local_rank: the device of a rank that is started without LOCAL_RANK. nvlink_pairs: linked devices are neighbours.
    """

    hosts: tuple[Host, ...] = field(
        metadata=of("include", "exclude", "num_nodes", "num_gpus", "hostfile", derived="this machine")
    )
    device: Literal["cpu", "cuda"] = field(metadata=of("device", derived="this machine"))
    backend: str = field(metadata=of("distributed_backend", derived="the device"))
    master_addr: str = field(metadata=of("master_addr", derived="the first host"))
    master_port: int
    threads_per_rank: int | None = field(metadata=of(derived="OMP_NUM_THREADS, or the cores of this machine"))
    tensor_parallel: int = field(default=1, metadata=of("model_parallel_size"))
    pipeline_parallel: int = field(default=1, metadata=of("pipe_parallel_size"))
    sequence_parallel: bool = False
    partition: str = field(default="type:transformer", metadata=of("pipe_partition_method"))
    local_rank: int | None = None
    nvlink_pairs: bool = field(default=False, metadata=of("detect_nvlink_pairs"))

    @property
    def world_size(self) -> int:
        """The number of ranks on all hosts."""
        return sum(host.slots for host in self.hosts)


@frozen
class RunPlan:
    """Everything decided before a process starts.

    architecture: its planner has the class of `model`. objective: what makes samples of documents.
    engine_component: what `engine` is for.
    run_dir: holds run.json, logs/ and metrics.jsonl.
    engine: plain values from the engine's planner, such as the JSON that DeepSpeed gets.
    plugins: id -> version of the plugins whose components the run uses.
    debug: show the engine's own messages.
    curriculum: what says which samples and tokens a step trains on; None: all, in the order of the run.
    """

    architecture: ComponentRef = field(metadata=of(kind="architecture"))
    objective: ComponentRef = field(metadata=of(kind="objective"))
    model: ModelPlan
    batch: BatchPlan
    data: DataPlan
    optim: OptimPlan
    precision: PrecisionPlan
    train: TrainPlan
    checkpoint: CheckpointPlan
    cluster: ClusterPlan
    launcher: ComponentRef = field(metadata=of(kind="launcher"))
    monitors: tuple[ComponentRef, ...] = field(metadata=of(kind="monitor"))
    engine_component: ComponentRef = field(metadata=of(kind="engine"))
    engine: dict[str, Any] = field(metadata=of(derived="the plan"))
    plugins: dict[str, str] = field(metadata=of(derived="the components in use"))
    run_dir: str = field(metadata=of("save", derived="the name of the config"))
    neox_version: str = field(metadata=of(derived="the installation"))
    debug: bool = field(default=False, metadata=of(derived="the command line"))
    curriculum: ComponentRef | None = field(default=None, metadata=of(kind="curriculum"))
    callbacks: tuple[ComponentRef, ...] = field(default=(), metadata=of(kind="callback"))
    evaluators: tuple[ComponentRef, ...] = field(default=(), metadata=of(kind="evaluator"))
    format: int = field(default=FORMAT, metadata=of(derived="the installation"))
