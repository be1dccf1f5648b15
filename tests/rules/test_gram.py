import torch

from outlast import rules
from outlast.rules.gram import BLOCK, distances, gram


def exact_distances(rows: torch.Tensor) -> torch.Tensor:
    wide = rows.double()
    return torch.stack([((wide - row) ** 2).sum(1) for row in wide])


def test_weights_of_length_one_that_differ_in_the_fourth_digit_rank_as_in_float64() -> None:
    torch.manual_seed(0)
    d = 3 * BLOCK + 5000
    common = torch.randn(d, dtype=torch.float64)
    spread = 1e-4 * torch.linspace(0.5, 1.5, 12).double()
    rows = common + spread[torch.randperm(12), None] * torch.randn(12, d, dtype=torch.float64)
    rows = (rows / rows.norm(dim=1, keepdim=True)).float()
    expected = exact_distances(rows)
    found = distances(gram(rows))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-14)
    assert torch.equal(found.argsort(1), expected.argsort(1))


def test_a_huge_row_that_looks_central_at_first_does_not_blind_the_others() -> None:
    torch.manual_seed(1)
    d = 2 * BLOCK
    rows = torch.randn(d) + 1e-3 * torch.randn(9, d)
    rows[4] = rows[0]
    rows[4, BLOCK + 77] = 1e20
    expected = exact_distances(rows)
    others = [k for k in range(9) if k != 4]
    found = distances(gram(rows))
    torch.testing.assert_close(found[others][:, others], expected[others][:, others], rtol=1e-4, atol=0)
    assert int(rules.Krum(2).plan(9, gram(rows)).mix.argmax()) != 4


def test_very_small_and_very_large_rows_neither_vanish_nor_overflow() -> None:
    torch.manual_seed(2)
    for scale in (1e-30, 1e-18, 1e25, 1e37):
        rows = torch.randn(6, 20_000) * scale
        torch.testing.assert_close(distances(gram(rows)), exact_distances(rows), rtol=1e-6, atol=0)


def test_zero_blocks_and_equal_rows_are_at_distance_zero() -> None:
    rows = torch.zeros(5, 2 * BLOCK)
    rows[:, :100] = torch.randn(100)
    assert torch.equal(distances(gram(rows)), torch.zeros(5, 5, dtype=torch.float64))


def test_rows_that_are_not_finite_spoil_nobody_else() -> None:
    torch.manual_seed(3)
    for d in (50, BLOCK + 10):
        rows = torch.randn(7, d)
        clean = gram(rows)
        rows[2, d // 2], rows[5, 0] = torch.nan, torch.inf
        found = gram(rows)
        others = [0, 1, 3, 4, 6]
        assert not found.diagonal()[[2, 5]].isfinite().any()
        expected = distances(clean)[others][:, others]
        torch.testing.assert_close(distances(found)[others][:, others], expected, rtol=1e-5, atol=0)


def test_landmarks_are_rows_like_others() -> None:
    torch.manual_seed(4)
    for d in (30, BLOCK + 5000):
        for offset in (0.0, 100.0):
            rows, centre = torch.randn(6, d) + offset, torch.randn(d)
            found = distances(gram(rows, [None, centre]))
            expected = exact_distances(torch.cat([rows, torch.zeros(1, d), centre[None]]))
            # How far landmarks are from each other is nobody's question.
            torch.testing.assert_close(found[:6], expected[:6], rtol=1e-5, atol=1e-9)


def test_bits_depend_neither_on_threads_nor_on_how_rows_lie_in_memory() -> None:
    torch.manual_seed(5)
    before = torch.get_num_threads()
    for offset in (0.0, 50.0):
        rows = torch.randn(9, 2 * BLOCK + 4567) + offset
        centre = torch.randn(2 * BLOCK + 4567)
        expected = gram(rows)
        elsewhere = torch.empty(len(centre) + 5)[5:].copy_(centre)
        assert torch.equal(gram(rows, [elsewhere]), gram(list(rows), [centre]))
        try:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                assert torch.equal(gram(rows), expected)
                assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
        assert torch.equal(gram(list(rows.clone().unbind(0))), expected)
        shifted = torch.empty(rows.numel() + 3)[3:].view(rows.shape)
        assert torch.equal(gram(shifted.copy_(rows)), expected)
        assert torch.equal(gram(rows.t().contiguous().t()), expected)


def test_who_lowers_the_precision_of_products_does_not_lower_this_one() -> None:
    torch.manual_seed(6)
    rows = torch.randn(6, BLOCK)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        torch.testing.assert_close(distances(gram(rows)), exact_distances(rows), rtol=1e-6, atol=0)
    finally:
        torch.set_float32_matmul_precision(before)
