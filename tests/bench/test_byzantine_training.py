import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.byzantine_rules import OUTLAST, aggregator
from bench.byzantine_training import ATTACKS, HIDDEN, HONEST, Run, accuracy, gradients, initial, train
from outlast import rules

WIDTH = 6


def blobs(samples: int = 400) -> tuple[Tensor, Tensor]:
    """Ten well-separated clouds of points, which anybody can learn."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(samples) % 10
    centres = 3 * torch.randn(10, WIDTH, generator=generator)
    return centres[labels] + 0.1 * torch.randn(samples, WIDTH, generator=generator), labels


def trained(rule: str, f: int, attack: str | None, steps: int = 60) -> Tensor:
    runs = [Run(1, 0.5), Run(2, 0.5)]
    return train(
        blobs(),
        runs,
        aggregator("outlast", rule, f, len(runs)),
        gamma=1.0,
        attack=attack,
        attackers=0 if attack is None else f,
        steps=steps,
    )


def test_batched_gradients_are_those_of_autograd() -> None:
    inputs, labels = torch.randn(2, 3, 5, WIDTH), torch.randint(10, (2, 3, 5))
    params = torch.stack([initial(WIDTH, seed) for seed in (0, 1)])
    found = gradients(params, inputs, labels)
    for run in range(2):
        for worker in range(3):
            leaf = params[run].clone().requires_grad_()
            first, first_bias, second, second_bias = leaf.split([WIDTH * HIDDEN, HIDDEN, HIDDEN * 10, 10])
            hidden = (inputs[run, worker] @ first.view(WIDTH, HIDDEN) + first_bias).relu()
            loss = F.cross_entropy(hidden @ second.view(HIDDEN, 10) + second_bias, labels[run, worker])
            loss.backward()
            torch.testing.assert_close(found[run, worker], leaf.grad)


def test_honest_workers_learn() -> None:
    assert min(accuracy(trained("mean", 0, None), blobs())) > 0.9


def test_runs_at_once_are_the_same_as_runs_by_themselves() -> None:
    both = trained("median", 0, None, steps=5)
    alone = train(
        blobs(),
        [Run(2, 0.5)],
        aggregator("outlast", "median", 0, 1),
        gamma=1.0,
        attack=None,
        attackers=0,
        steps=5,
    )
    torch.testing.assert_close(both[1], alone[0])


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_changes_what_is_learned(attack: str) -> None:
    assert not torch.equal(trained("mean", 3, attack, steps=3), trained("mean", 3, None, steps=3))


def test_attackers_spoil_the_mean_and_not_a_robust_rule() -> None:
    assert max(accuracy(trained("mean", 3, "opt_ipm"), blobs())) < 0.5
    assert min(accuracy(trained("nnm_trimmed_mean", 3, "opt_ipm"), blobs())) > 0.9


def test_a_training_that_diverged_knows_nothing() -> None:
    assert accuracy(torch.full((1, len(initial(WIDTH, 0))), torch.nan), blobs()) == [0.1]


@pytest.mark.parametrize("name", OUTLAST)
def test_to_foresee_is_not_to_remember(name: str) -> None:
    rows = torch.randn(2, HONEST + 2, 20, generator=torch.Generator().manual_seed(0))
    tempted, plain = aggregator("outlast", name, 2, 2), aggregator("outlast", name, 2, 2)
    tempted.foresee(1, 100 * rows[1])
    assert torch.equal(tempted(rows), plain(rows))


@pytest.mark.parametrize("name", OUTLAST)
def test_runs_do_not_hear_of_each_other(name: str) -> None:
    rows = torch.randn(2, 3, HONEST + 2, 20, generator=torch.Generator().manual_seed(0))
    together, alone = aggregator("outlast", name, 2, 3), aggregator("outlast", name, 2, 1)
    for step in rows:
        torch.testing.assert_close(together(step)[1:2], alone(step[1:2]))


def test_centred_clipping_starts_where_it_was() -> None:
    rows = torch.randn(1, HONEST, 20, generator=torch.Generator().manual_seed(0))
    clipping = aggregator("outlast", "centred_clipping", 2, 1)
    rule = rules.CentredClipping()
    first = clipping(rows)
    assert torch.equal(clipping(-rows)[0], rule(-rows[0], centre=first[0]))
