"""What tests of reading share."""

import json

import numpy as np
import pytest
from json_data import VOCAB


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    rng = np.random.RandomState(0)
    documents = [rng.randint(0, VOCAB, size=rng.randint(1, 30)).tolist() for _ in range(20)]
    path = tmp_path_factory.mktemp("data") / "tokens"
    path.write_text(json.dumps(documents))
    return path
