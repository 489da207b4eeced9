"""Each change of DeepSpeed and torch is still needed: a test that fails here says which one to delete."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import deepspeed
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer


def fresh(script: str) -> str:
    """What a new process prints that imports nothing of ours."""
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "DEEPSPEED_LOG_LEVEL": "error"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


IMPORT = "import sys, deepspeed.runtime.zero.muon.original_muon; print('torch._dynamo' in sys.modules)"


def test_muon_which_zero_imports_imports_the_compiler_of_torch() -> None:
    assert fresh(IMPORT) == "True", "delete _skip_compiler_for_muon"
    ours = "from neox_deepspeed.patches import import_deepspeed; import_deepspeed('cpu')"
    assert fresh(f"{ours}; {IMPORT}") == "False"


def test_the_tuner_imports_boosted_trees_where_they_are_installed(tmp_path: Path) -> None:
    (tmp_path / "xgboost.py").write_text("")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {{}}; print('xgboost' in sys.modules)"
    assert fresh(script.format("import deepspeed")) == "True", "delete _without_boosted_trees"
    ours = "from neox_deepspeed.patches import import_deepspeed; import_deepspeed('cpu')"
    assert fresh(script.format(ours)) == "False"
    assert fresh(script.format(f"{ours}; import xgboost")) == "True"


def test_a_process_group_on_a_cpu_compiles_an_op_where_the_table_allows_it() -> None:
    script = """
import sys, deepspeed.ops, deepspeed.comm.torch
from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder
deepspeed.ops.__compatible_ops__ = {table}
ShareMemCommBuilder.load = lambda self, *args, **named: "compiled"
print(sys.modules["deepspeed.comm.torch"].build_shm_op())
"""
    assert fresh(script.format(table={"deepspeed_shm_comm": True})) == "compiled", "delete _skip_probes_of_ops"
    assert fresh(script.format(table={"deepspeed_shm_comm": False})) == "None"


def test_an_engine_leaves_its_groups_behind() -> None:
    assert "mpu" not in inspect.getsource(deepspeed.DeepSpeedEngine.destroy), "delete forget_groups"


def test_no_norm_counts_some_parameters_more_often() -> None:
    for cls, name in (
        (DeepSpeedZeroOptimizer, "get_grad_norm_direct"),
        (DeepSpeedZeroOptimizer_Stage3, "get_grad_norm_direct"),
        (BF16_Optimizer, "get_grads_for_norm"),
    ):
        taken = set(inspect.signature(getattr(cls, name)).parameters) - {"self", "gradients", "params", "norm_type"}
        assert taken <= {"for_clipping", "args", "kwargs"}, "delete count_in_norm"


def test_a_stage_that_sends_several_tensors_goes_backward_for_each() -> None:
    source = inspect.getsource(PipelineEngine._exec_backward_pass)
    assert "for i, (out, grad) in enumerate(zip(out_tensors, grad_tensors))" in source, "delete go_backward_once"


def test_torch_waits_for_ever_for_a_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    os.utime(lock, (0, 0))
    script = f"""
from torch.utils import file_baton
naps = iter(range(100))
file_baton.time.sleep = lambda seconds: next(naps)
try:
    file_baton.FileBaton({str(lock)!r}).wait()
    print("ended")
except StopIteration:
    print("slept 100 times")
"""
    assert fresh(script) == "slept 100 times", "delete bound_waits"


def test_no_write_of_deepspeed_reserves_room() -> None:
    sources = [*Path(deepspeed.__file__).parent.glob("ops/csrc/aio/**/*.cpp")]
    assert sources
    assert not any("fallocate" in each.read_text() for each in sources), "delete reserving_handles"


def test_ops_are_compiled_with_debug_symbols() -> None:
    script = """
from neox_deepspeed.patches import import_deepspeed, skip_debug_symbols
import_deepspeed("cpu")
from deepspeed.ops.op_builder import CPUAdamBuilder
theirs = CPUAdamBuilder().cxx_args()
skip_debug_symbols(CPUAdamBuilder)
skip_debug_symbols(CPUAdamBuilder)
print("-g" in theirs, [arg for arg in theirs if arg != "-g"] == CPUAdamBuilder().cxx_args())
"""
    assert fresh(script) == "True True", "delete skip_debug_symbols"


def test_a_lock_of_torch_names_nobody(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    script = f"from torch.utils.file_baton import FileBaton; print(FileBaton({str(lock)!r}).try_acquire())"
    assert fresh(script) == "True"
    assert lock.read_bytes() == b"", "delete acquire"


def test_deepspeed_calls_nothing_before_it_averages() -> None:
    named = [name for name in dir(deepspeed.DeepSpeedEngine) if "hook" in name and ("grad" in name or "reduc" in name)]
    assert "allreduce_gradients()" in inspect.getsource(deepspeed.DeepSpeedEngine._backward_epilogue)
    assert named == [], "delete before_average"
