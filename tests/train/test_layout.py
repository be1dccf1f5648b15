import copy
import gc

import pytest
import torch
from torch import nn

from outlast.errors import ConfigError
from outlast.train.layout import Layout, Span


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_parameters_lie_in_reverse_order_and_float_buffers_follow() -> None:
    layout = Layout(mlp())
    assert [entry.name for entry in layout.entries] == [
        "2.bias",
        "2.weight",
        "1.bias",
        "1.weight",
        "0.bias",
        "0.weight",
        "1.running_mean",
        "1.running_var",
    ]
    assert layout.parameter_count == 6
    assert layout.size == 2 + 8 + 4 + 4 + 4 + 12 + 4 + 4
    assert [integer.name for integer in layout.integers] == ["1.num_batches_tracked"]
    assert layout.all_parameters == 0b111111
    assert layout.dtype is torch.float32


def test_buckets_end_between_parameters_and_buffers_have_their_own() -> None:
    layout = Layout(mlp(), first_bucket_bytes=40, bucket_bytes=48)
    assert layout.buckets == (Span(0, 10), Span(10, 22), Span(22, 34), Span(34, 42))
    assert [list(group) for group in layout.bucket_entries] == [[0, 1], [2, 3, 4], [5], [6, 7]]
    assert layout.bucket_of == (0, 0, 1, 1, 1, 2, 3, 3)
    assert layout.parameter_buckets == 3


def test_a_small_model_without_buffers_is_one_bucket() -> None:
    assert Layout(nn.Linear(3, 4)).buckets == (Span(0, 16),)


def test_tied_weights_lie_once_and_frozen_ones_nowhere() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[2].weight.requires_grad_(False)
    layout = Layout(model)
    assert [entry.name for entry in layout.entries] == ["2.bias", "0.weight"]
    assert layout.frozen == ("2.weight",)


def test_buffers_count_whether_saved_or_not_and_once() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Module(), nn.Module())
    model[1].register_buffer("fleeting", torch.zeros(2), persistent=False)
    model[2].register_buffer("same", model[1].fleeting)
    model[2].register_buffer("flags", torch.zeros(2, dtype=torch.bool))
    layout = Layout(model)
    assert [entry.name for entry in layout.float_entries] == ["1.fleeting"]
    assert [integer.name for integer in layout.integers] == ["2.flags"]


def test_one_double_parameter_makes_the_vector_double() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double())
    assert Layout(model).dtype is torch.float64
    assert Layout(nn.Linear(1, 1).bfloat16()).dtype is torch.float32


def test_views_are_made_once_per_vector_and_go_with_it() -> None:
    layout = Layout(mlp())
    flat = torch.arange(layout.size, dtype=torch.float32)
    views = layout.views(flat)
    assert layout.views(flat) is views
    assert views[1].shape == (2, 4)
    assert views[1].flatten().tolist() == list(range(2, 10))
    views[0].fill_(-1)
    assert flat[:2].tolist() == [-1, -1]
    assert layout.views(flat.clone())[0] is not views[0]
    del flat
    gc.collect()
    assert not layout._cuts


def test_a_view_has_its_parameters_memory_format() -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    layout = Layout(model)
    weight = layout.views(torch.zeros(layout.size))[1]
    assert weight.stride() == model.weight.stride()
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_a_layout_finds_the_parameters_of_a_copy() -> None:
    model = mlp()
    layout = Layout(model)
    other = copy.deepcopy(model)
    assert layout.parameters(other)[0] is other[2].bias


def test_what_can_not_be_reduced_is_refused_by_name() -> None:
    model = nn.Linear(2, 2)
    model.spin = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ConfigError, match=r"parameter spin is complex .*view_as_complex"):
        Layout(model)
    with pytest.raises(ConfigError, match=r"weight has no data yet.*one forward pass"):
        Layout(nn.LazyLinear(3))
    with pytest.raises(ConfigError, match="has no data yet"):
        Layout(nn.Linear(2, 2, device="meta"))
    with pytest.raises(ConfigError, match="Linear has no trainable parameter"):
        Layout(nn.Linear(2, 2).requires_grad_(False))


def test_a_model_that_another_library_reduces_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"The model is wrapped in DataParallel.*plain model"):
        Layout(nn.DataParallel(nn.Linear(2, 2)))
    with pytest.raises(ConfigError, match="0 is wrapped"):
        Layout(nn.Sequential(nn.DataParallel(nn.Linear(2, 2))))
