import torch

from outlast.train.flats import FlatPool


def test_a_vector_is_used_again_when_its_last_holder_gave_it_back() -> None:
    pool = FlatPool(3, torch.float32)
    flat = pool.take()
    pool.hold(flat)
    pool.give_back(flat)
    assert pool.take() is not flat
    pool.give_back(flat)
    assert pool.take() is flat
    assert pool.allocated == 2
