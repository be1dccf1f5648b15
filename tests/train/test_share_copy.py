"""When the bytes of a copy may be written."""

import mmap
import threading

import pytest
import torch

from outlast.errors import CheckpointError
from outlast.state.image import describe
from outlast.train.copying import Room, ShareCopy


def share(room: Room, tensor: torch.Tensor) -> ShareCopy:
    image = describe(["x"], [tensor], b"", b"")
    half = image.total_bytes // 2
    ranges = [range(half), range(half, image.total_bytes)]
    return ShareCopy(image, [tensor], ranges, room, lasting=lambda _: True)


def test_nothing_is_given_out_before_the_copy_is_settled() -> None:
    copy = share(Room(), torch.arange(2048, dtype=torch.float32))
    given: list[bytes] = []
    writer = threading.Thread(target=lambda: given.extend(bytes(part) for _, part in copy.parts()))
    writer.start()
    copy.start()
    copy._thread.join()
    assert all(copy._copied) and not given
    copy.settle()
    writer.join()
    assert b"".join(given) == torch.arange(2048, dtype=torch.float32).numpy().tobytes()


def test_a_copy_of_a_tensor_that_changed_meanwhile_is_never_given_out() -> None:
    tensor = torch.zeros(2048)
    copy = share(Room(), tensor)
    copy.start()
    tensor.add_(1)
    copy.settle()
    with pytest.raises(CheckpointError, match="changed between two steps' updates"):
        next(copy.parts())


def test_every_part_begins_a_page_so_that_it_can_go_to_a_disk_as_it_is() -> None:
    room = Room()
    parts = room.parts([100, mmap.PAGESIZE, 5])
    assert [part.numel() for part in parts] == [100, mmap.PAGESIZE, 5]
    assert all(part.data_ptr() % mmap.PAGESIZE == 0 for part in parts)


def test_room_is_used_again() -> None:
    room = Room()
    first = room.parts([mmap.PAGESIZE] * 3)[0].data_ptr()
    assert room.parts([mmap.PAGESIZE])[0].data_ptr() == first
