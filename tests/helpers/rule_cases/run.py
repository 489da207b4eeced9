"""Rules about data, checkpoints, measurements, and reports."""

from rule_cases.case import CPU, Case

CASES: dict[str, Case] = {
    "profiles_switched_on": (
        ("flops_profiler.top_modules=3",),
        "warning: flops_profiler.top_modules: does nothing without flops_profiler.enabled",
        ("flops_profiler.top_modules=3", "flops_profiler.enabled=true"),
        CPU,
    ),
    "save_has_interval": (
        ("save=out",),
        "note: save: has no save-interval, so that the run saves at its end",
        ("save=out", "save-interval=5"),
        CPU,
    ),
    "background_needs_linux": (
        ("checkpoint={background: true}",),
        "note: checkpoint.background: changes nothing: this run saves no checkpoints",
        ("checkpoint={background: true}", "save=out", "save-interval=5"),
        CPU,
    ),
    "stores_have_an_address": (
        ("save=file://me:secret@host/run", "save-interval=5"),
        (
            "error: save: must not hold credentials: a run stores and prints the address (remove what is before @ or"
            " after ?, and set them in the environment, such as AWS_ACCESS_KEY_ID)"
        ),
        ("save=file:///host/run", "save-interval=5"),
        CPU,
    ),
    "extra_saves_can_be_made": (
        ("extra-save-iters=[5]",),
        "note: extra-save-iters: does nothing without save",
        ("extra-save-iters=[5, 100]", "save=out", "save-interval=50"),
        CPU,
    ),
    "no_loss_depends_on_a_generator": (
        ("no-load-rng=true", "load=out"),
        "note: no-load-rng: changes no number of the run: weights, dropout and the order of the data follow",
        ("load=out",),
        CPU,
    ),
    "settled_for_all_checkpoints": (
        ("checkpoint.load_universal=true",),
        "note: checkpoint.load_universal: changes no number of the run: checkpoints load on any number of ranks",
        (),
        CPU,
    ),
    "components_have_libraries": (
        ("monitors=[console, far]",),
        "error: monitors: far needs neox_no_such_library, not installed (install neox_no_such_library as the author of",
        ("monitors=[console, web]",),
        CPU,
    ),
    "evaluators_have_evaluations": (
        ("evaluators=[counter]", "eval-iters=0"),
        "error: eval-iters: is 0, so no evaluator measures anything (set it, or remove the evaluators)",
        ("evaluators=[counter]", "eval-iters=1", "eval-interval=1"),
        CPU,
    ),
    "named_ones_not_switched_off": (
        ("monitors=[board]", "board.enabled=false"),
        "error: board.enabled: false contradicts monitors, which names board",
        ("monitors=[board]", "board.enabled=true"),
        CPU,
    ),
    "profile_needs_timers": (
        ("flops_profiler.enabled=true", "wall-clock-breakdown=false"),
        "warning: wall-clock-breakdown: is switched on anyway",
        ("flops_profiler.enabled=false", "wall-clock-breakdown=false"),
        CPU,
    ),
    "pipelines_are_not_timed": (
        ("num_gpus=2", "pipe-parallel-size=2", "wall-clock-breakdown=true"),
        "error: wall-clock-breakdown: the engine cannot time a pipeline (measure with pipe-parallel-size: 1)",
        ("num_gpus=2", "pipe-parallel-size=1", "wall-clock-breakdown=true"),
        CPU,
    ),
    "timed_collectives_chosen_once": (
        ("comms_logger={enabled: true, prof_ops: [all_reduce]}",),
        "error: comms_logger.prof_ops: does nothing with prof_all",
        ("comms_logger={enabled: true, prof_all: false, prof_ops: [all_reduce]}",),
        CPU,
    ),
    "finetune_has_source": (
        ("finetune=true",),
        "error: finetune: does nothing without load",
        ("finetune=true", "load=in"),
        CPU,
    ),
    "split_is_shares": (("split=1,-1",), "error: split: must be non-negative shares", ("split=1,0",), CPU),
    "files_are_there": (
        ("tokenizer-type=GPT2BPETokenizer", "vocab-file=a", "merge-file=b"),
        "error: merge-file: there is no file b",
        ("tokenizer-type=GPT2BPETokenizer", "vocab-file=a", f"merge-file={__file__}"),
        CPU,
    ),
    "data_is_there": (("data-path=nowhere/x",), "error: data-path: there is no dataset nowhere/x", (), CPU),
}
