import pytest
import torch

from outlast.train.parcel import SMALL_BYTES, pack, unpack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (2, 0)])
def test_a_tensor_arrives_as_it_was(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    sent = torch.ones(shape, dtype=dtype)
    got = unpack(pack({"deep": [sent]}))["deep"][0]
    assert got.dtype is dtype and got.shape == shape and torch.equal(got, sent)


def test_a_small_tensor_is_copied_and_a_large_one_is_shared() -> None:
    small, large = torch.zeros(SMALL_BYTES // 4), torch.zeros(SMALL_BYTES // 4 + 1)
    unpack(pack((small, large)))
    assert not small.is_shared() and large.is_shared()


def test_parts_of_one_memory_stay_connected() -> None:
    whole = torch.zeros(4)
    first, second = unpack(pack((whole[:2], whole[1:])))
    first[1] = 7
    assert second[0] == 7


def test_what_is_not_plain_goes_the_usual_way() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    leaf = torch.ones(2, requires_grad=True)
    transposed = torch.arange(6).view(2, 3).t()
    got = unpack(pack((parameter, leaf, transposed)))
    assert isinstance(got[0], torch.nn.Parameter) and got[1].requires_grad
    assert torch.equal(got[2], transposed)
