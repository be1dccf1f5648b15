"""Nested values go out and come back with their types, and nothing else gets in or out."""

import collections
import contextlib
import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlast.errors import ConfigError, ProtocolError
from outlast.state.nodes import DictNode, NumpyNode, SequenceNode, TensorNode, decode, encode
from outlast.state.tree import MAX_DEPTH, flatten, unflatten

# The machines that run these tests have other things to do as well.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def there_and_back(value: object) -> Any:
    flat = flatten(value)
    return unflatten(decode(encode(flat.plain)), flat.tensors)


def same(a: object, b: object) -> bool:
    """Equal in value and in type, all the way down; a NaN equals a NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict) and isinstance(b, dict):
        pairs = zip(a.items(), b.items(), strict=True)
        return len(a) == len(b) and all(same(k, m) and same(v, w) for (k, v), (m, w) in pairs)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    if isinstance(a, float) and isinstance(b, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    return a == b


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
steady = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
keys = steady | st.tuples(steady, steady)
leaves = (
    scalars
    | st.sampled_from([torch.float32, torch.bfloat16, torch.device("cpu"), torch.device("cuda", 1)])
    | st.lists(st.integers(0, 9), max_size=4).map(torch.Size)
    | st.sets(steady, max_size=4)
    | st.frozensets(steady, max_size=4)
    | st.lists(st.integers(-5, 5), max_size=3).map(torch.tensor)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=20,
)


@patient
@given(values)
def test_values_come_back_as_they_were(value: object) -> None:
    assert same(there_and_back(value), value)


@patient
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_value_or_a_protocol_error(noise: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        unflatten(decode(noise), [])


@settings(patient, max_examples=300)
@given(values, st.data())
def test_damaged_bytes_are_a_value_or_a_protocol_error(value: object, data: st.DataObject) -> None:
    flat = flatten({"a": value, "b": [torch.zeros(2), {3: (1, 2)}]})
    damaged = bytearray(encode(flat.plain))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        unflatten(decode(bytes(damaged)), flat.tensors)


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 2**4000, -(2**4000)])
def test_ints_have_any_size(number: int) -> None:
    assert there_and_back(number) == number


def test_dicts_of_the_standard_library_keep_what_is_data() -> None:
    ordered = collections.OrderedDict([("b", 1), ("a", 2)])
    counted = collections.Counter({3: 2})
    filled = collections.defaultdict(list, {"x": [1]})
    assert same(there_and_back([ordered, counted]), [ordered, counted])
    assert same(there_and_back(filled), {"x": [1]})


@pytest.mark.parametrize("dtype", ["bool", "u1", "u2", "u4", "u8", "i1", "i8", "f2", "f4", "f8", "c8", "c16"])
def test_numpy_arrays_and_numbers_come_back(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    locked = array.copy()
    locked.flags.writeable = False
    back, backwards, scalar, point, unwritable = there_and_back(
        [array, array[::-1], array[1, 2], np.array(1, dtype), locked]
    )
    assert back.dtype == array.dtype and (back == array).all()
    assert (backwards == array[::-1]).all()
    assert type(scalar) is type(array[1, 2]) and scalar == array[1, 2]
    assert isinstance(point, np.ndarray) and point.shape == ()
    assert (unwritable == array).all()


def test_a_tensor_is_not_copied_on_its_way_out() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    assert flatten({"w": [weight]}).tensors[0] is weight


def test_parts_can_be_numbered_on_from_each_other() -> None:
    first = flatten([torch.zeros(1)])
    second = flatten([torch.ones(1)], first_index=1)
    assert unflatten(second.plain, first.tensors + second.tensors)[0].item() == 1


def test_sets_are_encoded_alike_whatever_their_order() -> None:
    assert encode(flatten({8, 0, 16}).plain) == encode(flatten({16, 8, 0}).plain)


class Rate(float):
    pass


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            {"sched": {"lr_lambdas": [lambda epoch: 1.0]}},
            r"state\['sched'\]\['lr_lambdas'\]\[0\] is a function",
        ),
        ({"a": object()}, r"state\['a'\] is a value of type object"),
        ([Rate(1)], r"state\[0\] is a value of type .*Rate"),
        ((Point(1, 2),), r"state\[0\] is a value of type .*Point"),
        ({"s": 1 + 2j}, r"state\['s'\] is a value of type complex"),
        ({frozenset({1}): 1}, r"has a key of type frozenset"),
        ({torch.zeros(1): 1}, r"has a key of type torch.Tensor"),
        ({(1, (2, frozenset())): 1}, r"has a key of type tuple"),
        ({"s": {frozenset()}}, r"state\['s'\]\[0\] is a frozenset in a set"),
        ("\ud800", "not valid Unicode"),
        (np.array(["a"]), "numpy value of dtype"),
        (np.array([1.0], ">f8"), "numpy value of dtype >f8"),
        (np.array([object()]), "numpy value of dtype object"),
        ([np.datetime64("2020-01-01")], r"state\[0\] is a numpy value of dtype datetime64"),
        (torch.zeros(2, 2).to_sparse(), "layout torch.sparse_coo.*to_dense"),
        (torch.empty(2, device="meta"), "meta device"),
        (torch.empty(2, dtype=torch.int4), "torch.int4"),
        (torch.nn.LazyLinear(3).weight, "UninitializedParameter.*Run one batch"),
    ],
)
def test_what_cannot_travel_is_refused_by_path_and_type(value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        flatten(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append({"again": loop})
    with pytest.raises(ConfigError, match=r"state\[0\]\['again'\]\[0\].*contains itself"):
        flatten(loop)


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


def test_the_deepest_value_that_goes_out_also_comes_back() -> None:
    assert there_and_back(nested(MAX_DEPTH)) == nested(MAX_DEPTH)
    with pytest.raises(ConfigError):
        flatten(nested(MAX_DEPTH + 1))


def test_nesting_beyond_the_bound_is_a_protocol_error() -> None:
    node = SequenceNode("list", [])
    for _ in range(MAX_DEPTH + 1):
        node = SequenceNode("list", [node])
    with pytest.raises(ProtocolError, match="deeper"):
        unflatten(node, [])
    with pytest.raises(ProtocolError):
        decode(b"\x93\xa5items\xa4list\x91" * 100_000)


def test_too_many_bytes_are_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.state.nodes.MAX_PLAIN_BYTES", 100)
    with pytest.raises(ConfigError, match="Keep long lists of numbers as tensors"):
        encode("x" * 100)
    with pytest.raises(ProtocolError, match="limit"):
        decode(b"\xc0" * 101)


@pytest.mark.parametrize(
    "node",
    [
        TensorNode(1),
        TensorNode(-1),
        NumpyNode(0, scalar=True),
        NumpyNode(7, scalar=False),
        DictNode("dict", [(1, 1), (1, 2)]),
        DictNode("dict", [(SequenceNode("list", []), 1)]),
        DictNode("dict", [(TensorNode(0), 1)]),
        SequenceNode("set", [1, 1]),
        SequenceNode("frozenset", [SequenceNode("list", [])]),
        SequenceNode("size", ["a"]),
        SequenceNode("size", [2**63]),
    ],
)
def test_nodes_that_make_no_sense_are_protocol_errors(node: Any) -> None:
    with pytest.raises(ProtocolError):
        unflatten(node, [torch.zeros(2)])


@pytest.mark.parametrize(
    "payload", [["dtype", "save"], ["device", "moon"], ["numpy", 0, True], ["dtype", "nope"]]
)
def test_names_from_a_peer_can_name_nothing_but_what_they_should(payload: list[object]) -> None:
    with pytest.raises(ProtocolError):
        unflatten(decode(msgspec.msgpack.encode(payload)), [torch.zeros(2, dtype=torch.bfloat16)])


@pytest.mark.parametrize(
    "payload", [["nonsense", 1], ["items", "deque", []], ["tensor", "0"], ["tensor", 0, 0], {}]
)
def test_unknown_tags_and_fields_are_protocol_errors(payload: object) -> None:
    with pytest.raises(ProtocolError):
        decode(msgspec.msgpack.encode(payload))
