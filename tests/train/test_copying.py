"""A copy that is made beside the next step is of one moment, or it is void."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from outlast.errors import CheckpointError
from outlast.state.contents import Image
from outlast.state.image import copy_piece, describe
from outlast.train import copying
from outlast.train.copying import PAGE_BYTES, Room, ShareCopy
from patience import PATIENCE_S

WAIT_S = PATIENCE_S


def state(*shapes: tuple[int, ...]) -> tuple[Image, list[Tensor]]:
    generator = torch.Generator().manual_seed(3)
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    return describe([f"t{i}" for i in range(len(tensors))], tensors, b"", b""), tensors


def cut(image: Image, size: int = 256) -> list[range]:
    return [range(lo, min(lo + size, image.total_bytes)) for lo in range(0, image.total_bytes, size)]


def bytes_in(image: Image, tensors: list[Tensor], ranges: list[range]) -> list[bytes]:
    found = []
    for piece in ranges:
        out = torch.empty(len(piece), dtype=torch.uint8)
        copy_piece(image, tensors, piece, out)
        found.append(bytes(out.numpy()))
    return found


def written(share: ShareCopy) -> list[bytes]:
    return [bytes(memory) for _, memory in share.parts()]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Copying waits for this event, in every thread but the training thread's own."""
    opened = threading.Event()
    here = threading.current_thread()

    def waits(image: Image, tensors: list[Tensor], piece: range, out: Tensor) -> None:
        if threading.current_thread() is not here:
            assert opened.wait(WAIT_S)
        copy_piece(image, tensors, piece, out)

    monkeypatch.setattr(copying, "copy_piece", waits)
    yield opened
    opened.set()


def share_of(
    image: Image,
    tensors: list[Tensor],
    room: Room | None = None,
    lasting: Callable[[Tensor], bool] = lambda _: True,
) -> ShareCopy:
    return ShareCopy(image, tensors, cut(image), room or Room(), lasting=lasting)


def test_the_bytes_are_those_of_the_state() -> None:
    image, tensors = state((40, 7), (3,), (), (0, 4), (129,))
    share = share_of(image, tensors)
    expected = bytes_in(image, tensors, cut(image))
    share.start()
    share.settle()
    share.settle()
    assert written(share) == expected and share.size_bytes == image.total_bytes


def test_the_training_thread_goes_on_while_it_is_copied_and_helps_before_the_update(
    gate: threading.Event,
) -> None:
    image, tensors = state((400,))
    expected = bytes_in(image, tensors, cut(image))
    share = share_of(image, tensors)
    share.start()
    gradient = tensors[0] * 2
    releasing = threading.Timer(0.05, gate.set)
    releasing.start()
    share.settle()
    tensors[0].add_(gradient)
    assert written(share) == expected, "the update came after"
    releasing.join()


def test_a_tensor_that_changes_in_between_makes_the_copy_void() -> None:
    image, tensors = state((64,), (64,))
    share = share_of(image, tensors)
    share.start()
    with torch.no_grad():
        tensors[1].mul_(2)
    share.settle()
    with pytest.raises(CheckpointError, match=r"1 tensors .*\(64,\).*after the loop over the shards"):
        list(share.parts())


def test_nothing_is_given_out_before_the_copy_is_settled() -> None:
    image, tensors = state((2048,))
    share = share_of(image, tensors)
    given: list[bytes] = []
    writer = threading.Thread(target=lambda: given.extend(written(share)))
    writer.start()
    share.start()
    share._thread.join(WAIT_S)
    assert all(share._copied) and not given
    share.settle()
    writer.join(WAIT_S)
    assert given == bytes_in(image, tensors, cut(image))


def test_what_may_change_in_a_forward_pass_is_copied_at_once(gate: threading.Event) -> None:
    image, tensors = state((64,), (64,))
    expected = bytes_in(image, tensors, cut(image))
    share = share_of(image, tensors, lasting=lambda tensor: tensor is tensors[0])
    # A counter of the script's own: not through torch, so that no version tells of it.
    tensors[1].numpy()[:] = 7
    share.start()
    gate.set()
    share.settle()
    assert written(share) == expected


def test_a_writer_that_waits_hears_when_it_is_given_up(gate: threading.Event) -> None:
    image, tensors = state((400,))
    share = share_of(image, tensors)
    share.start()
    heard: list[BaseException] = []

    def write() -> None:
        try:
            written(share)
        except CheckpointError as error:
            heard.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    share.give_up("a peer is gone")
    writer.join(WAIT_S)
    assert [str(error) for error in heard] == ["a peer is gone"]
    gate.set()


def test_an_error_while_copying_is_the_writers_and_not_the_training_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image, tensors = state((400,))
    share = share_of(image, tensors)

    def fails(*_: object) -> None:
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(copying, "copy_piece", fails)
    share.start()
    share.settle()
    with pytest.raises(CheckpointError, match="the device is lost"):
        list(share.parts())


def test_a_share_of_nothing_is_there_at_once() -> None:
    image, tensors = state((4,))
    share = ShareCopy(image, tensors, [], Room(), lasting=lambda _: True)
    share.start()
    share.settle()
    assert written(share) == []


def test_room_is_used_again_and_grows() -> None:
    room = Room()
    first = room.parts([100, 5000, 1])
    assert [part.numel() for part in first] == [100, 5000, 1]
    assert all(part.data_ptr() % PAGE_BYTES == 0 for part in first), "as a disk wants it"
    assert room.parts([50])[0].data_ptr() == first[0].data_ptr()
    assert room.parts([10 * PAGE_BYTES])[0].numel() == 10 * PAGE_BYTES


def test_the_tensors_are_let_go_when_it_is_settled() -> None:
    image, tensors = state((400,))
    share = share_of(image, tensors)
    share.start()
    share.settle()
    share._thread.join(WAIT_S)
    assert share._tensors == () and share._versions == []
