import torch

from outlast import rules
from outlast.rules import attacks


def rows(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(9, 40, generator=torch.Generator().manual_seed(0)) + 1).to(dtype)


def test_directed_attacks_are_what_their_papers_say() -> None:
    honest = rows()
    mean, spread = honest.mean(0), honest.std(0, correction=0)
    torch.testing.assert_close(attacks.sign_flip(honest, 2), -mean.expand(2, 40))
    torch.testing.assert_close(attacks.ipm(honest, 2, strength=0.1), (-0.1 * mean).expand(2, 40))
    torch.testing.assert_close(attacks.alie(honest, 3, strength=1.5), (mean - 1.5 * spread).expand(3, 40))
    # As in the paper: of 50 workers 24 are corrupt and need 2 supporters, so they may be 1.43 deviations out.
    assert abs(attacks.alie_strength(50, 24) - 1.4260) < 1e-3
    assert torch.equal(attacks.mimic(honest, 2, target=4), honest[4].expand(2, 40))


def test_mimic_picks_who_differs_most() -> None:
    honest = rows()
    honest[6] += 10
    assert torch.equal(attacks.mimic(honest, 1)[0], honest[6])


def test_optimised_attacks_are_at_least_as_bad_as_any_they_could_have_been() -> None:
    honest = rows()
    for rule in (rules.Krum(2), rules.TrimmedMean(2), rules.GeometricMedian()):

        def harm(bad: torch.Tensor, rule: rules.Rule = rule) -> float:
            return float((rule(torch.cat([honest, bad])) - honest.mean(0)).norm())

        for worst, plain in ((attacks.worst_alie, attacks.alie), (attacks.worst_ipm, attacks.ipm)):
            found = harm(worst(honest, 2, rule=rule))
            assert found >= max(harm(plain(honest, 2, strength=s)) for s in (0.25, 0.5, 1.0, 2.0)) - 1e-6


def test_accidents() -> None:
    honest = rows()
    assert attacks.not_a_number(honest, 2).isnan().all()
    assert attacks.infinite(honest, 2).isinf().all() and (attacks.infinite(honest, 2) < 0).any()
    generator = torch.Generator().manual_seed(1)
    noise = attacks.gaussian(honest, 200, generator=generator, scale=3.0)
    assert abs(float(noise.std()) - 3) < 0.1
    again = attacks.gaussian(honest, 200, generator=torch.Generator().manual_seed(1), scale=3.0)
    assert torch.equal(noise, again)


def test_bit_flips_change_exactly_that_many_bits_of_any_kind() -> None:
    for dtype, whole in (
        (torch.float32, torch.int32),
        (torch.bfloat16, torch.int16),
        (torch.float64, torch.int64),
    ):
        honest = rows(dtype)
        bad = attacks.bit_flips(honest, 50, generator=torch.Generator().manual_seed(2))
        changed = bad.view(whole) ^ honest[torch.arange(50) % 9].view(whole)
        bits = [value & (2**64 - 1) for value in changed[changed != 0].tolist()]
        assert len(bits) == 50
        mask = 2 ** (8 * honest.element_size()) - 1
        assert all((value & mask).bit_count() == 1 for value in bits)
        assert torch.equal(honest, rows(dtype))


def test_labels_are_flipped() -> None:
    assert attacks.flip_labels(torch.tensor([0, 3, 9]), 10).tolist() == [9, 6, 0]
