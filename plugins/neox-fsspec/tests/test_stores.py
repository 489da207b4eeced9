"""The other stores of the plugin, as far as they can be tried without a server."""

import pytest
from neox_author.testing import assert_light, check_store, load_only
from neox_fsspec import objects


def test_listing_is_light() -> None:
    assert_light("neox-fsspec")


def test_a_folder_keeps_the_contract() -> None:
    check_store(load_only("neox-fsspec"), "file")


def test_a_bucket_has_to_be_named() -> None:
    with pytest.raises(FileNotFoundError, match="s3:///run names no bucket"):
        objects.s3("/run", None).list()
