import torch
from neox_author.testing import assert_light, build, check_objective, load_only
from neox_author.testing.outputs import WholeLogits

from neox_core.contracts.objective import Batch


def test_the_contract_holds():
    check_objective(load_only("neox-causal-lm"), "causal-lm")


def test_the_contract_holds_with_a_z_loss():
    check_objective(load_only("neox-causal-lm"), "causal-lm", z_loss=0.1)


def test_the_z_loss_is_the_mean_square_of_log_z_in_training_alone():
    objective = load_only("neox-causal-lm").find("objective", "causal-lm")
    tokens = torch.randint(32, (3, 9), generator=torch.Generator().manual_seed(1))
    logits = 3 * torch.randn(3, 8, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    found = objective.load()(None, build(objective, z_loss=0.25))

    def run(tokens):
        return WholeLogits(logits)

    entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    z = logits.exp().sum(-1).log().square().mean()
    loss = found.loss(run, Batch(tokens))
    torch.testing.assert_close(loss.mean, entropy + 0.25 * z, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.metrics["z"], z, rtol=1e-12, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(found.loss(run, Batch(tokens)).mean, entropy, rtol=1e-12, atol=0)


def test_listing_is_light():
    assert_light("neox-causal-lm")
