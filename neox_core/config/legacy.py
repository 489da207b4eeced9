"""Older spellings of keys, turned into the ones in use before anything else looks at them.

They are those of GPT-NeoX's first README and of DeepSpeed's first pages, and a few of later GPT-NeoX that say in one
word what a block says here. Aliases of a setting (`setting(aliases=...)`) need no rule.
"""

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from neox_core.config.convert import same, shown
from neox_core.config.load import Loaded, Place
from neox_core.config.problem import Problem
from neox_core.config.report import spell


@frozen
class Means:
    """A key each of whose values is a setting of today, (dotted key, value); None: it says nothing.

    also: other values of that setting which the key agrees with.
    """

    key: str
    cases: Mapping[bool | str, tuple[str, Any] | None]
    also: tuple[str, ...] = ()

    @property
    def today(self) -> str:
        """What stands in its place, in words."""
        return ", ".join(f"{_plain(raw)}: `{setting_text(*to)}`" for raw, to in self.cases.items() if to is not None)


@frozen
class Moved:
    """A key that has another name or lives in a block now. `item`: place in a list, whose other items are `others`."""

    key: str
    to: str
    item: int | None = None
    others: tuple[float, ...] = ()

    @property
    def today(self) -> str:
        """What stands in its place, in words."""
        return f"`{spell(self.to)}`" if self.item is None else f"`{self.to}[{self.item}]`"


@frozen
class Gone:
    """A key without successor. A `harmless` value asks for what happens anyway; any other is an error."""

    key: str
    why: str
    harmless: tuple[Any, ...] = ()
    hint: str = "remove it"

    @property
    def today(self) -> str:
        """What stands in its place, in words."""
        return f"nothing: {self.why}"


Legacy = Means | Moved | Gone


def _switch(key: str, to: str, value: Any, also: tuple[str, ...] = ()) -> Means:
    return Means(key, {True: (to, value), False: None}, also)


LEGACY: tuple[Legacy, ...] = (
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
    Gone("disable_allgather", "DeepSpeed 0.19.8 collects updated shards by all-gather only", (False,)),
    _switch("zero_optimization", "zero_optimization.stage", 1),
    _switch("zero_optimization.cpu_offload", "zero_optimization.offload_optimizer.device", "cpu"),
    _switch("zero_optimization.cpu_offload_param", "zero_optimization.offload_param.device", "cpu"),
    _switch("zero_optimization.cpu_offload_params", "zero_optimization.offload_param.device", "cpu"),
    Means("precision", {"fp16": ("fp16.enabled", True), "bfloat16": ("bf16.enabled", True), "fp32": None}),
    Gone("fp16.type", "chooses another precision than its block", ("fp16",), "bf16: {enabled: true} is bfloat16"),
    Gone("deepspeed_mpi", "the launcher tells the ranks their places", (False,), "launcher: openmpi starts by mpirun"),
    Gone("lazy_mpu_init", "there is no outside caller that could complete the set-up", (False,)),
    Gone("DDP_impl", "DeepSpeed averages the gradients", ("local", "torch")),
    _switch("onnx_safe", "activation", "erf-gelu", also=("openai-gelu",)),
    Moved("batch_size", "train_micro_batch_size_per_gpu"),
    Moved("lr", "optimizer.params.lr"),
    Moved("adam_beta1", "optimizer.params.betas", 0, (0.9, 0.999)),
    Moved("adam_beta2", "optimizer.params.betas", 1, (0.9, 0.999)),
    Moved("adam_eps", "optimizer.params.eps"),
    Moved("loss_scale", "fp16.loss_scale"),
    Moved("loss_scale_window", "fp16.loss_scale_window"),
    Moved("min_scale", "fp16.min_loss_scale"),
    Moved("hysteresis", "fp16.hysteresis"),
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
)
SAYS_NOTHING = "says nothing any more"
"""How the note on a key begins whose value asks for what happens anyway."""
_BLOCKS = {"zero_optimization"}  # keys that were a switch, and are a block


@frozen
class Assumed:
    """What GPT-NeoX takes for a key that is missing beside another, where this version has no default or its own."""

    key: str
    value: Any
    beside: str


ASSUMED = (
    Assumed("tokenizer_type", "GPT2BPETokenizer", beside="vocab_file"),
    Assumed("optimizer.type", "Adam", beside="lr"),
    Assumed("wandb.project", "neox", beside="use_wandb"),
)
GONE_KEYS = frozenset(rule.key for rule in LEGACY if isinstance(rule, Gone))
LEGACY_KEYS = frozenset(rule.key for rule in LEGACY if "." not in rule.key) - _BLOCKS


def modernise(loaded: Loaded) -> Loaded:
    """The same config in today's spelling; a key whose successor says something else is an error that names both."""
    work = _Work(loaded)
    for rule in LEGACY:
        block, last = work.block_of(rule.key)
        if last not in block or isinstance(block[last], dict):
            continue
        if rule.key in _BLOCKS and not isinstance(block[last], bool):
            continue
        raw = block.pop(last)
        if isinstance(rule, Means):
            work.means(rule, raw)
        elif isinstance(rule, Gone):
            work.gone(rule, raw)
        elif raw is not None:
            work.move(rule, raw)
        if not block and "." in rule.key:
            work.drop_empty(rule.key.rpartition(".")[0])
    places = {path: place for path, place in work.places.items() if path not in work.taken}
    return evolve(loaded, values=work.values, places=places, problems=(*loaded.problems, *work.problems))


def with_assumed(today: Loaded, written: Loaded) -> Loaded:
    """The config of today with what GPT-NeoX would take for what is not in it, for a file that is to be rewritten."""
    work = _Work(today)
    for each in ASSUMED:
        block, last = work.block_of(each.key)
        if written.values.get(each.beside) and block.get(last) is None:
            place = written.places[each.beside]
            if work.write(each.key, each.value, place):
                message = f"without {spell(each.key)}, GPT-NeoX takes {each.value}: now written"
                work.problems.append(Problem(message, place.spelled, "", place.where, "note"))
    return evolve(today, values=work.values, places=work.places, problems=(*today.problems, *work.problems))


class _Work:
    def __init__(self, loaded: Loaded) -> None:
        self.values = _copy(loaded.values)
        self.places = dict(loaded.places)
        self.written = frozenset(loaded.places)
        self.taken: set[str] = set()
        self.problems: list[Problem] = []

    def block_of(self, path: str) -> tuple[dict[str, Any], str]:
        """The block around a key, empty when it is not there, and the key's last part."""
        *parts, last = path.split(".")
        block: Any = self.values
        for part in parts:
            block = block.get(part) if isinstance(block, dict) else None
        return (block if isinstance(block, dict) else {}), last

    def drop_empty(self, path: str) -> None:
        """A block of which nothing is left, when all that it held said nothing."""
        block, last = self.block_of(path)
        if block.get(last) == {}:
            del block[last]

    def say(self, rule: Legacy, message: str, hint: str = "", severity: str = "error") -> None:
        place = self.places[rule.key]
        self.problems.append(Problem(message, place.spelled, hint, place.where, severity))

    def means(self, rule: Means, raw: Any) -> None:
        self.forget(rule)
        if not any(same(raw, case) for case in rule.cases):
            known = "true or false" if True in rule.cases else "one of " + ", ".join(map(str, rule.cases))
            if raw is not None:
                self.say(rule, f"must be {known}, not {shown(raw)}")
            return
        case = rule.cases[raw]
        if case is not None:
            self.put(rule, *case, also=rule.also)
            return
        for to, value in filter(None, rule.cases.values()):
            block, last = self.block_of(to)
            if to in self.places and last in block and any(same(block[last], each) for each in (value, *rule.also)):
                self.differs(rule, to, to)

    def gone(self, rule: Gone, raw: Any) -> None:
        self.forget(rule)
        if raw is None:
            return
        harmless = any(same(raw, each) for each in rule.harmless)
        severity = "note" if harmless else "error"
        said = SAYS_NOTHING if harmless else f"cannot be {shown(raw)}"
        self.say(rule, f"{said}: {rule.why}", rule.hint, severity)

    def move(self, rule: Moved, raw: Any) -> None:
        self.forget(rule)
        if rule.item is None:
            self.put(rule, rule.to, raw)
            return
        name = f"{rule.to}[{rule.item}]"
        block, last = self.block_of(rule.to)
        now = block.get(last)
        if rule.to in self.written and now is not None:
            if not isinstance(now, list) or len(now) <= rule.item or not same(now[rule.item], raw):
                self.differs(rule, rule.to, name)
            else:
                self.agrees(rule, name)
            return
        items = list(now) if isinstance(now, list) else list(rule.others)
        items[rule.item] = raw
        self.set(rule, rule.to, items, name)

    def put(self, rule: Legacy, to: str, value: Any, also: tuple[str, ...] = ()) -> None:
        block, last = self.block_of(to)
        now = block.get(last)
        name = spell(to) if isinstance(rule, Moved) else setting_text(to, value)
        if now is None:
            self.set(rule, to, value, name)
        elif not any(same(now, each) for each in (value, *also)):
            self.differs(rule, to, name)
        else:
            self.agrees(rule, name)

    def set(self, rule: Legacy, to: str, value: Any, name: str) -> None:
        if self.write(to, value, self.places[rule.key]):
            self.taken.discard(to)
            self.agrees(rule, name)

    def write(self, to: str, value: Any, place: Place) -> bool:
        """False where a block around the key is no block, which is reported where it is read."""
        *parts, last = to.split(".")
        block = self.values
        for part in parts:
            if block.get(part) is None:
                block[part] = {}
            if not isinstance(block[part], dict):
                return False
            block = block[part]
        block[last] = value
        self.places[to] = Place(place.where, place.spelled)
        return True

    def agrees(self, rule: Legacy, name: str) -> None:
        self.say(rule, f"is the old spelling of {name}", severity="note")

    def forget(self, rule: Legacy) -> None:
        """The key itself is no longer written, once its successor is."""
        self.taken.add(rule.key)

    def differs(self, rule: Legacy, to: str, name: str) -> None:
        there = self.places[to]
        self.say(
            rule, f"differs from {there.spelled} at {there.where}", f"{name} is the spelling in use: keep that one"
        )


def setting_text(key: str, value: Any) -> str:
    """`key: value` as a message writes it."""
    return f"{spell(key)}: {_plain(value)}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def _copy(value: Any) -> Any:
    return {key: _copy(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value
