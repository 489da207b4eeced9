import pytest

from neox_core.errors import ConfigError
from neox_core.hooks.registry import Entry
from neox_core.testing import assert_light, build, check_optimizer, load_only


@pytest.fixture
def lion() -> Entry:
    return load_only("neox-example-lion").find("optimizer", "ExampleLion")


def test_listing_imports_no_torch() -> None:
    assert_light("neox-example-lion")


def test_optimizer_contract() -> None:
    check_optimizer(load_only("neox-example-lion"), "ExampleLion", lr=0.05)


def test_three_steps_by_hand(lion: Entry) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = lion.load()([weight], build(lion, lr=0.5, weight_decay=0.1))
    for gradient in (5.0, -0.3, -1.0):  # at step 2 the buffer outvotes the gradient, at step 3 no more
        weight.grad = torch.tensor([gradient])
        optimizer.step()
    assert weight.item() == pytest.approx(((0.95 - 0.5) * 0.95 - 0.5) * 0.95 + 0.5)


def test_bad_settings_are_reported_together(lion: Entry) -> None:
    with pytest.raises(ConfigError, match=r"(?s)optimizer\.params\.lr.*optimizer\.params\.betas"):
        build(lion, lr=-1.0, betas=(0.9, 1.5))
