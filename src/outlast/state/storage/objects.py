"""Objects in an object store: S3 and all that speak its language, Google's and Azure's.

What such a store has acknowledged is durable, and visible as a whole to everybody from then on. A create is a
put with the condition that there is no such object. A large put goes in parts; until the last one is
acknowledged nothing is visible, and what a killed writer leaves are parts that only the store itself sees:
let it throw them away after a day (a lifecycle rule for incomplete multipart uploads). The requests of a call
that was given up may still arrive; they carry a copy of what they were given, so they bring the right bytes,
if late.
"""

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import final

from outlast.errors import ObjectDamaged, ObjectMissing, StorageError, StorageUnavailable
from outlast.state.storage import clouds, giving_up, refusals
from outlast.state.storage.keys import check_key, check_prefix, is_key
from outlast.state.storage.seam import Bytes, Stored

_PART_BYTES = 16 << 20
_PARTS_AT_ONCE = 4
_PIECE_BYTES = 4 << 20
_PAGE = 1000


@final
class Objects:
    def __init__(self, scheme: str, bucket: str, prefix: str = "") -> None:
        """`prefix` has no '/' at either end; empty means the whole bucket."""
        self.url = f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else "")
        self._client = clouds.client(scheme, bucket)
        self._prefix = f"{prefix}/" if prefix else ""
        # Importing it is what `clouds` has already done, or explained why not.
        import obstore

        self._obstore = obstore

    def put(self, key: str, data: Bytes) -> None:
        path = self._path(key)
        with self._explained(key, "written"):
            self._obstore.put(
                self._client, path, bytes(data), chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )

    def create(self, key: str, data: Bytes) -> bool:
        path = self._path(key)
        with self._explained(key, "written"):
            try:
                self._obstore.put(self._client, path, bytes(data), mode="create", use_multipart=False)
                return True
            except self._obstore.exceptions.AlreadyExistsError:
                pass
            # A store may say so as well when another create is under way that can still fail. Look.
            try:
                self._obstore.head(self._client, path)
            except FileNotFoundError:
                raise StorageUnavailable(
                    f"{self.url}/{key} could not be written (somebody else is just writing it, or deleting "
                    "it). Try again."
                ) from None
            return False

    def get(self, key: str, most_bytes: int) -> bytes:
        path = self._path(key)
        with self._explained(key, "read"):
            found = self._obstore.get(self._client, path)
            size_bytes = found.meta["size"]
            if size_bytes > most_bytes:
                raise self._damaged(
                    key, f"it has {size_bytes} bytes, where at most {most_bytes} were expected"
                )
            data = bytes(found.bytes())
        if len(data) != size_bytes:
            raise self._damaged(key, f"it ended after {len(data)} of {size_bytes} bytes")
        return data

    def read_into(self, key: str, out: memoryview) -> None:
        path = self._path(key)
        memory = out.cast("B")
        with self._explained(key, "read"):
            found = self._obstore.get(self._client, path)
            size_bytes = found.meta["size"]
            if size_bytes != len(memory):
                raise self._damaged(key, f"it has {size_bytes} bytes, where {len(memory)} were expected")
            done = 0
            for piece in found.stream(min_chunk_size=_PIECE_BYTES) if memory else ():
                giving_up.check()
                view = memoryview(piece)
                if done + len(view) > len(memory):
                    raise self._damaged(key, f"it goes on after {len(memory)} bytes")
                memory[done : done + len(view)] = view
                done += len(view)
        if done != size_bytes:
            raise self._damaged(key, f"it ended after {done} of {size_bytes} bytes")

    def list(self, prefix: str) -> Iterator[Stored]:
        return self._listed(check_prefix(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        paths = map(self._path, keys)
        while some := list(islice(paths, _PAGE)):
            with self._explained(f"{some[0].removeprefix(self._prefix)} and others", "deleted"):
                try:
                    self._obstore.delete(self._client, some)
                except FileNotFoundError as error:
                    if refusals.no_bucket(error):
                        raise
                    # Some stores say so of one, and nothing of the others.
                    for path in some:
                        with contextlib.suppress(FileNotFoundError):
                            self._obstore.delete(self._client, path)

    def _path(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _listed(self, prefix: str) -> Iterator[Stored]:
        found = []
        with self._explained(prefix, "listed"):
            for page in self._obstore.list(self._client, self._prefix + prefix or None, chunk_size=_PAGE):
                giving_up.check()
                for meta in page:
                    key = meta["path"].removeprefix(self._prefix)
                    if is_key(key):
                        found.append(Stored(key, meta["size"]))
        # Not all of them list in the order of whole keys.
        yield from sorted(found)

    @contextlib.contextmanager
    def _explained(self, key: str, done: str) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except (self._obstore.exceptions.BaseError, OSError) as error:
            if isinstance(error, FileNotFoundError) and done == "read" and not refusals.no_bucket(error):
                raise ObjectMissing(f"There is no object {key} in {self.url}.") from None
            # Without the original, whose text holds the request as it was signed.
            raise refusals.explain(error, f"{self.url}/{key} could not be {done}") from None

    def _damaged(self, key: str, how: str) -> ObjectDamaged:
        return ObjectDamaged(
            f"The object {key} in {self.url} is not what was written: {how}. Use another checkpoint."
        )
