"""The JSON for the engine: a pure function of the plan and of the blocks that the engine reads.

Every value that matters is written out, since the engine's defaults are not those of the documents and have moved
between its versions. No block appears that is not wanted: some of them act, or raise, by being there at all.
"""

from typing import Any

from neox_core.plan.runfile import BatchPlan, PrecisionPlan
from neox_deepspeed.config.json.blocks import EngineBlocks
from neox_deepspeed.config.json.extra import merge
from neox_deepspeed.config.json.precision import precision_json
from neox_deepspeed.config.json.profiling import profiling_json
from neox_deepspeed.config.json.zero import aio_json, zero_json

__all__ = ["EngineBlocks", "engine_json"]


def engine_json(
    batch: BatchPlan, precision: PrecisionPlan, blocks: EngineBlocks, *, gradient_clipping: float
) -> dict[str, Any]:
    """What `deepspeed.initialize` gets beside the client's model, optimizer and schedule."""
    communication = blocks.communication
    engine = {
        "train_batch_size": batch.train_batch,
        "train_micro_batch_size_per_gpu": batch.micro_batch,
        "gradient_accumulation_steps": batch.gradient_accumulation,
        "gradient_clipping": gradient_clipping,
        "prescale_gradients": communication.prescale_gradients,
        "gradient_predivide_factor": communication.gradient_predivide_factor,
        "communication_data_type": communication.communication_data_type,
        **profiling_json(blocks.profiling),
        "zero_optimization": zero_json(blocks.zero),
        # the optimizer comes from a plugin; that it may be sharded was decided before the start
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **precision_json(precision, blocks.precision),
        **aio_json(blocks.aio, blocks.zero),
    }
    return merge(engine, blocks.extra)
