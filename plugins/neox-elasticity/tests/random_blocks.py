"""10,000 blocks `elasticity`, each with a number of GPUs: the same in every Python, since only `random()` is drawn."""

import random
from collections.abc import Iterator
from typing import Any

SEED, COUNT = 20261123, 10_000


def blocks() -> Iterator[tuple[dict[str, Any], int]]:
    draw = random.Random(SEED)

    def number(low: int, high: int) -> int:
        return low + int(draw.random() * (high - low + 1))

    for _ in range(COUNT):
        most = number(1, (40, 300, 3000, 30000)[number(0, 3)])
        micro = [number(1, min(most + 1, (8, 64)[number(0, 1)])) for _ in range(number(1, 5))]
        fewest = number(1, (1, 4, 40)[number(0, 2)])
        version = (0.1, 0.2)[number(0, 1)]
        node = (1, 1, 2, 3, 4, 8)[number(0, 5)] if version == 0.2 else 1
        width = (1, 1, 1, 2, 4)[number(0, 4)] if version == 0.2 else 1
        block = {
            "max_train_batch_size": most,
            "micro_batch_sizes": micro,
            "min_gpus": fewest,
            "max_gpus": fewest + number(0, (5, 100, 10000)[number(0, 2)]),
            "prefer_large_batch": draw.random() < 0.5,
            "version": version,
            "num_gpus_per_node": node,
            "model_parallel_size": width,
        }
        yield block, node * number(1, (4, 24)[number(0, 1)])
