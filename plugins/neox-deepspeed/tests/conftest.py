"""What tests of the engine share. The folder is where they find `tiny_engines`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from neox_deepspeed.testing import process_group_of_one

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with process_group_of_one(tmp_path_factory.mktemp("store")):
        yield
