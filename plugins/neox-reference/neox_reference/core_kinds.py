"""The text of docs/hooks.md about the kinds that the core defines; kinds of plugins have their own `help`."""

CONTRACTS: dict[str, tuple[str, ...]] = {
    "architecture": ("Architecture", "ArchitecturePlanner"),
    "objective": ("Objective", "Batch", "Outputs", "Scores", "Loss"),
    "engine": ("EngineMaker", "EnginePlanner"),
    "optimizer": ("Optimizer", "ModalOptimizer", "AveragingOptimizer"),
    "lr schedule": ("LRSchedule",),
    "scheduler": ("LRSchedule",),
    "launcher": ("Launcher",),
    "data backend": ("DataBackend", "ResumableBackend", "TokenizingBackend", "StreamingBackend"),
    "tokenizer": ("Tokenizer", "TrainableTokenizer"),
    "curriculum": ("Curriculum",),
    "monitor": ("Monitor", "Measured"),
    "callback": ("Callback", "Ask"),
    "evaluator": ("Evaluator", "EvaluationRun"),
    "store": ("Store", "StoredCheckpoints"),
    "dialect": ("Dialect",),
}
"""Kind -> the Protocols of its target, the first that of every component."""

HELP = {
    "architecture": "Its planner is an `ArchitecturePlanner`. The keys of its shape are its `sections`.",
    "objective": "Which samples are made of documents, and the loss of a batch of them.",
    "engine": "Its planner is an `EnginePlanner`. The keys of sharding, offload and profiling are its `sections`.",
    "optimizer": """An optimizer with other weights for evaluation also follows `ModalOptimizer`, one that communicates
between the data-parallel ranks by itself `AveragingOptimizer`.""",
    "scheduler": "A scheduler replaces `lr-decay-style`, and may ignore the warm-up, peak and floor of the shape.",
    "data backend": """A backend that can continue an unfinished dataset also follows `ResumableBackend` of
`neox_data.api`, one that reads text `TokenizingBackend`, one that does not count its documents beforehand
`StreamingBackend`.""",
    "tokenizer": "A tokenizer that can be trained on text also follows `TrainableTokenizer` of `neox_data.api`.",
    "curriculum": "Chosen by `enabled` of their own settings, one at a time.",
    "monitor": "Chosen by `monitors`, a list, or by `enabled` of their own settings.",
    "callback": """Acts at events of a run, in its ranks. Chosen by `callbacks`, a list, or by `enabled` of their own
settings.""",
    "evaluator": """Numbers of the model at evaluations. Chosen by `evaluators`, a list, or by `enabled` of their own
settings.""",
    "store": """Named by its protocol, and chosen by addresses in `save` and `load`, such as `s3://bucket/run`. Its
planner makes `StoredCheckpoints`; that of neox-fsspec serves every store.""",
    "dialect": """Configs in the keys of another program, or of an older version: what they mean here. Every installed
dialect translates a config before anything else reads it.""",
    "command": """Subcommands of `neox` by name; `config.x` is `neox config x`, and `data.x` is `neox data x`, whichever
plugin offers the group. The target is a `click.Command` with a docstring, imported when the command is called.""",
}
