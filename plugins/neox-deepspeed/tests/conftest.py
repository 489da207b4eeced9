"""What tests of the engine share."""

from collections.abc import Iterator

import pytest
from neox_deepspeed.testing import process_group_of_one


@pytest.fixture(scope="module")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with process_group_of_one(tmp_path_factory.mktemp("store")):
        yield
