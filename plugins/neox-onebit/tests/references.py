"""The recurrences of the three papers in float64 for all ranks at once, and what they send, as sums over signs."""

import math

import torch
from drive_ranks import COMMON, DECAY, gradients, rate, start

(BETA1, BETA2), EPS = COMMON["betas"], COMMON["eps"]
LENGTH = 160  # a row of the first parameter, the matrix


def compressed(vector):
    """sign(x) |x|_1 / d of each LENGTH elements."""
    out = torch.empty_like(vector.reshape(-1))
    for first in range(0, out.numel(), LENGTH):
        block = vector.reshape(-1)[first : first + LENGTH]
        size = block.abs().sum() / block.numel()
        out[first : first + LENGTH] = torch.where(block >= 0, size, -size)
    return out.view_as(vector)


class Errors:
    """Of the exchange of one parameter: of each worker, and of all servers together."""

    def __init__(self, like, ranks):
        self.workers = [torch.zeros_like(like) for _ in range(ranks)]
        self.server = torch.zeros_like(like)

    def exchange(self, vectors):
        sent = []
        for rank, vector in enumerate(vectors):
            message = compressed(vector + self.workers[rank])
            self.workers[rank] = vector + self.workers[rank] - message
            sent.append(message)
        mean = sum(sent) / len(sent)
        reply = compressed(mean + self.server)
        self.server = mean + self.server - reply
        return reply


def given(steps, ranks):
    """float64 gradients [step][rank][parameter], steps counted from 1."""
    return [None] + [
        [[each.double() for each in gradients(step, rank)] for rank in range(ranks)] for step in range(1, steps + 1)
    ]


def one_bit_adam(steps, ranks, freeze_step, floor):
    """Algorithm 1 of arXiv:2102.02888, frozen variances at least `floor` of their mean. Weights after the last step."""
    found = []
    for index, weight in enumerate(start()):
        x = weight.detach().double()
        m, v, errors = torch.zeros_like(x), torch.zeros_like(x), Errors(x, ranks)
        decay = DECAY if index == 0 else 0.0
        for step, all_ranks in enumerate(given(steps, ranks)[1:], start=1):
            g = [of_rank[index] for of_rank in all_ranks]
            if step <= freeze_step:
                mean = sum(g) / ranks
                m = BETA1 * m + (1 - BETA1) * mean
                v = BETA2 * v + (1 - BETA2) * mean**2
                frozen = v / (1 - BETA2**step)
            else:
                if step == freeze_step + 1:
                    frozen = frozen.clamp(min=floor * float(frozen.mean()))
                m = errors.exchange([BETA1 * m + (1 - BETA1) * each for each in g])
            x = x - rate(step) * (m / (1 - BETA1**step) / (frozen.sqrt() + EPS) + decay * x)
        found.append(x)
    return found


def deepspeeds_adam(steps, ranks, freeze_step):
    """OnebitAdam of DeepSpeed 0.9 under its fp16 optimizer, by what it sends and keeps. Weights after the last step.

    A group is one vector, filled up with zeros so that each of n servers has as many bytes of signs. Rank and server
    send sign(x) |x|_2 / sqrt(d), of d numbers with the zeros; sign(0) is +. The counter of steps is one ahead of those
    that train, since making the state has taken one.
    """
    groups, found = [[0], [1, 2]], {}  # with weight decay, and without
    for decay, members in zip((DECAY, 0.0), groups, strict=True):
        x = torch.cat([start()[index].detach().double().reshape(-1) for index in members])
        multiple = ranks * math.lcm(ranks, 8)
        length = math.ceil(len(x) / multiple) * multiple
        m, v = torch.zeros_like(x), torch.zeros_like(x)
        worker = [torch.zeros(length, dtype=torch.float64) for _ in range(ranks)]
        server = [torch.zeros(length // ranks, dtype=torch.float64) for _ in range(ranks)]
        for step, all_ranks in enumerate(given(steps, ranks)[1:], start=1):
            g = [torch.cat([of_rank[index].reshape(-1) for index in members]) for of_rank in all_ranks]
            if step + 1 <= freeze_step:
                mean = sum(g) / ranks
                m, v = BETA1 * m + (1 - BETA1) * mean, BETA2 * v + (1 - BETA2) * mean * mean
            else:
                messages = []
                for rank in range(ranks):
                    whole = torch.zeros(length, dtype=torch.float64)
                    whole[: len(x)] = BETA1 * m + (1 - BETA1) * g[rank]
                    whole = whole + worker[rank]
                    message = torch.where(whole >= 0, 1.0, -1.0).double() * (whole.norm() / math.sqrt(length))
                    worker[rank] = whole - message
                    messages.append(message)
                replies = []
                for place, share in enumerate((sum(messages) / ranks).chunk(ranks)):
                    kept = share + server[place]
                    reply = torch.where(kept >= 0, 1.0, -1.0).double() * (kept.norm() / math.sqrt(len(kept)))
                    server[place] = kept - reply
                    replies.append(reply)
                m = torch.cat(replies)[: len(x)]
            x = x - rate(step) * (m / (v.sqrt() + EPS) + decay * x)
        parts = x.split([start()[index].numel() for index in members])
        found |= {index: part.view_as(start()[index]) for index, part in zip(members, parts, strict=True)}
    return [found[index] for index in sorted(found)]


def variance_steps(last, scaler):
    """T_v: k_0 = 1, k_(j+1) = k_j + 2^floor(j / scaler)."""
    found, step, j = [], 1, 0
    while step <= last:
        found.append(step)
        step += 2 ** (j // scaler)
        j += 1
    return found


def zero_one_adam(steps, ranks, freeze, scaler, meets, floor, *, corrected):
    """Algorithm 1 of arXiv:2202.06009, the momentum of a step in T_v from the exact gradient. [rank][parameter]."""
    exact, weights = variance_steps(freeze, scaler), [[] for _ in range(ranks)]
    for index, weight in enumerate(start()):
        x = [weight.detach().double() for _ in range(ranks)]
        last, m, u = x[0], [torch.zeros_like(x[0])] * ranks, [torch.zeros_like(x[0])] * ranks
        v, errors, total, updates = torch.zeros_like(x[0]), Errors(x[0], ranks), 0.0, 0
        decay = DECAY if index == 0 else 0.0
        for step, all_ranks in enumerate(given(steps, ranks)[1:], start=1):
            g = [of_rank[index] for of_rank in all_ranks]
            if step in exact:
                g = [sum(g) / ranks] * ranks
                v, updates = BETA2 * v + (1 - BETA2) * g[0] ** 2, updates + 1
                v = v.clamp(min=floor * float(v.mean()))
            size = (v / (1 - BETA2**updates if corrected else 1)).sqrt() + EPS
            gamma, keep = rate(step) / (1 - BETA1**step if corrected else 1), 1 - rate(step) * decay
            m = [BETA1 * mine + (1 - BETA1) * each for mine, each in zip(m, g, strict=True)]
            x = [keep * mine - gamma * each / size for mine, each in zip(x, m, strict=True)]
            u = [keep * mine + gamma * each for mine, each in zip(u, m, strict=True)]
            last, total = keep * last, keep * total + gamma
            if step in exact:
                last, u, total = x[0], [torch.zeros_like(v)] * ranks, 0.0
            elif step <= freeze or step in meets:
                mean = errors.exchange([each / total for each in u])
                m, x = [mean] * ranks, [last - total * mean / size] * ranks
                last, u, total = x[0], [torch.zeros_like(v)] * ranks, 0.0
        for rank in range(ranks):
            weights[rank].append(x[rank])
    return weights


def one_bit_lamb(steps, ranks, freeze_step, floor, beta3, bounds, threshold):
    """Algorithm 1 of arXiv:2104.06069 over LAMB (arXiv:1904.00962) with corrections for the start.

    Frozen variances are at least `floor` of their mean.
    """
    found, factors = [], []
    for index, weight in enumerate(start()):
        x = weight.detach().double()
        m, v, errors, average, factor = torch.zeros_like(x), torch.zeros_like(x), Errors(x, ranks), 0.0, 1.0
        decay, seen = DECAY if index == 0 else 0.0, []
        for step, all_ranks in enumerate(given(steps, ranks)[1:], start=1):
            g = [of_rank[index] for of_rank in all_ranks]
            if step <= freeze_step:
                mean = sum(g) / ranks
                m, v = BETA1 * m + (1 - BETA1) * mean, BETA2 * v + (1 - BETA2) * mean**2
                frozen = (v / (1 - BETA2**step)).sqrt() + EPS
            else:
                if step == freeze_step + 1:
                    v = v.clamp(min=floor * float(v.mean()))
                    frozen = (v / (1 - BETA2**freeze_step)).sqrt() + EPS
                before, m = m, errors.exchange([BETA1 * m + (1 - BETA1) * each for each in g])
                v = BETA2 * v + (1 - BETA2) * ((m - BETA1 * before) / (1 - BETA1)) ** 2
            direction = m / (1 - BETA1**step) / frozen
            update = direction + decay * x
            if step <= freeze_step:
                ratio = min(max(float(x.norm() / update.norm()), bounds[0]), bounds[1])
                average = beta3 * average + (1 - beta3) * ratio
            else:
                grown = float((frozen / ((v / (1 - BETA2**step)).sqrt() + EPS)).max())
                if decay:
                    share = min(1.0, float(direction.norm() / update.norm()))
                    grown = grown * share + 1 - share
                grown = min(max(grown, 0.5), 4.0)
                factor = min(max(grown, factor * (1 - threshold)), factor * (1 + threshold))
                ratio = average * factor
                seen.append(factor)
            x = x - rate(step) * ratio * update
        found.append(x)
        factors.append(seen)
    return found, factors


def is_as_expected(weight, expected):
    """Whether all but a few elements are: one so near to 0 that its sign is rounding goes its own way from there."""
    far = (weight.double() - expected).abs() > 2e-4 * (1 + expected.abs())
    return math.isfinite(float(weight.sum())) and float(far.double().mean()) <= 0.05
