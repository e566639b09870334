"""`.logfs/commit`: each line of JSON written to it commits staged batches (`commit_client`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.mount.nodes.admin import RequestFile
from logfs.mount.nodes.base import Caller, Handle
from logfs.store.admin.commit_client import format_answer, parse_request, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.log.read.reader import Reader


class CommitFile(RequestFile):
    """The file that takes commits."""

    def open(self, flags: int, caller: Caller) -> Handle:
        self.check_open(flags)
        return CommitHandle(self)


class CommitHandle(Handle):
    """An open `commit` file.

    A request is all data up to a write that ends with a newline. Its answer is read from the same handle.
    """

    direct_io = True

    def __init__(self, node: CommitFile) -> None:
        super().__init__(node)
        self._store = node.context.store
        self._asked = b""
        self._answer = b""
        # The bytes written. A sequential reader finds the answer after them; a reader by position finds it at 0.
        self._written = 0
        self._begins: int | None = None
        self._grown: Sequence[Reader] = ()

    def read(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes of the answer to the last request.

        A sequential reader finds the answer after the bytes that it wrote, other readers find it at 0. The first read
        after a write decides: if its `position` is at or after the number of bytes written, the answer begins there.
        """
        if self._begins is None:
            self._begins = position if position >= self._written else 0
        position = max(position - self._begins, 0)
        return self._answer[position : position + size]

    def write(self, data: bytes) -> int:
        """Take data of a request. A write that ends with a newline completes the request.

        This write does the commit, in a worker thread, and raises the error of a commit that fails.
        """
        asked = self._asked + data
        self._begins = None
        if asked.endswith(b"\n"):
            self._store.disk.check_may_block()
            self._asked = b""
            try:
                request = parse_request(asked)
                names = {file.partition for file in request.staged}
                # Also after a failure: a decided commit grows these logs as soon as it can be done.
                found = (self._store.find(name) for name in sorted(names))
                self._grown = [partition for partition in found if partition is not None]
                done = serve(self._store, request)
            except Exception as error:
                self._answer = format_answer(error)
                raise
            self._answer = format_answer(done)
        else:
            self._asked = asked
        self._written += len(data)
        return len(data)

    def grown(self) -> Sequence[Reader]:
        return self._grown
