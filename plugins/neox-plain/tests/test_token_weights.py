"""What batches count for where some of their tokens do not."""

import torch
from neox_gpt.documents import DocumentRules
from neox_plain.token_weights import token_weights
from torch.nn import functional as F

from neox_core.parallel.groups import Groups

ALONE = Groups(None, None, 0, 1)
RULES = DocumentRules(eod=3, mask_loss=True)


def test_the_mean_of_weighed_means_is_the_mean_over_tokens() -> None:
    batches = torch.randint(5, (4, 2, 8), generator=torch.Generator().manual_seed(0))
    batches[2, :, :5] = 3  # hardly anything counts here
    logits = torch.randn(4, 2, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.stack([RULES.labels(each[:, :-1], each[:, 1:]) for each in batches])
    expected = F.cross_entropy(logits.flatten(0, 2), labels.flatten())
    means = [F.cross_entropy(*(each.flatten(0, 1) for each in pair)) for pair in zip(logits, labels, strict=True)]
    weights = token_weights(list(batches), RULES, ALONE)
    found = torch.stack([mean * weight for mean, weight in zip(means, weights, strict=True)]).mean()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert abs(torch.stack(means).mean() - expected) > 1e-3


def test_a_batch_in_which_nothing_counts_weighs_nothing() -> None:
    some, nothing = torch.zeros(1, 5, dtype=torch.int64), torch.full((1, 5), 3)
    assert torch.stack(list(token_weights([some, nothing], RULES, ALONE))).tolist() == [2.0, 0.0]
    assert torch.stack(list(token_weights([nothing, nothing], RULES, ALONE))).tolist() == [0.0, 0.0]
