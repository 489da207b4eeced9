from neox_author.testing import assert_light, check_objective, load_only


def test_the_contract_holds():
    check_objective(load_only("neox-causal-lm"), "causal-lm")


def test_listing_is_light():
    assert_light("neox-causal-lm")
