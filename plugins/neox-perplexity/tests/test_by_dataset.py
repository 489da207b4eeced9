"""The names of datasets, and the contract. The numbers are compared in tests/e2e/test_guarded_runs.py."""

from collections.abc import Sequence

import pytest
from neox_author.testing import assert_light, check_evaluator, load_only
from neox_perplexity.by_dataset import names


def test_listing_is_light() -> None:
    assert_light("neox-perplexity")


def test_contract() -> None:
    check_evaluator(load_only("neox-perplexity"), "perplexity_by_dataset")


@pytest.mark.parametrize(
    ("prefixes", "named"),
    [
        (["data/web", "data/code"], ["web", "code"]),
        (["data/web/valid", "data/code/valid"], ["web_valid", "code_valid"]),
        (["/a/b/valid", "/c/b/valid"], ["a_b_valid", "c_b_valid"]),
        (["some where/my data\x1b[31m"], ["my_data_31m"]),
        (["web", "web"], ["web", "web.2"]),
    ],
)
def test_names_of_datasets(prefixes: Sequence[str], named: list[str]) -> None:
    assert names(prefixes) == named
