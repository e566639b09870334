"""Compiles the kernels (the loops for numba) before their first use, so that no request waits for the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.format.base.batch_rows import BATCH_COLUMNS, SPAN_START

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray


def warm_up() -> None:
    """Compile the kernels for reading, appending and compaction, or load them from numba's cache.

    This takes at most a second if the cache has the compiled kernels, otherwise about twenty seconds.
    """
    for _ in warm_up_steps():
        pass


def warm_up_steps() -> Iterator[None]:
    """Compile the kernels for reading, appending and compaction, or load them from numba's cache, step by step.

    A step takes a few seconds at most. Yields after each step, so that the caller can stop between two steps.
    """
    import numpy as np

    from logfs.format.batches.batch import Batch
    from logfs.format.batches.record import Record
    from logfs.format.encoding.batch_builder import BatchFormat, build_lines, build_records
    from logfs.format.kernels import batch_kernels, text_kernels
    from logfs.format.text.rendering import View, measure, render

    built = build_lines(b"a\n" * 16, BatchFormat(), 0)
    headers = (("h", b"v"),)
    yield
    built.batches += build_records([Record(b"v", b"k", headers)] * 16, BatchFormat(), 0).batches
    for new in built.batches:
        batch = Batch.parse(new.data)
        measure(batch)
        yield
        batch.record_at(3)
        batch_kernels.find_record(
            np.frombuffer(batch.payload, np.uint8), 0, len(batch.payload), 16, 3
        )
        yield
        for view in View:
            render(batch.columns(), view, b"{")
            yield
    rows = np.empty((1, BATCH_COLUMNS), np.int64)
    data = np.frombuffer(bytes(built.batches[0].data), np.uint8)
    batch_kernels.scan_batches(data, 0, False, rows)
    yield
    spans = np.ascontiguousarray(rows[:, SPAN_START:])
    batch_kernels.render_lines(data, spans, np.empty(32, np.uint8))
    yield
    text = np.frombuffer(b"{", np.uint8)
    text_kernels.render_envelopes(data, spans, False, text, text, np.empty(4096, np.uint8), 0)
    yield
    sizes, edges = np.empty((1, 3), np.int64), np.empty((1, 2), np.int64)
    text_kernels.measure_spans(data, spans, 0, sizes, edges)
    yield
    batch_kernels.check_crcs(data, rows, len(data))
    yield
    yield from _compaction_steps(data, rows)


def _compaction_steps(data: NDArray[np.uint8], rows: NDArray[np.int64]) -> Iterator[None]:
    import numpy as np

    from logfs.format.kernels import compaction_kernels

    spans = np.ascontiguousarray(rows[:, SPAN_START:])
    slots = np.zeros((4, 3), np.uint64)
    secret = np.zeros(2, np.uint64)
    # Make the array read-only, as `OffsetMap.secret` is: numba compiles a separate version for read-only arrays.
    secret.flags.writeable = False
    scratch = np.empty(compaction_kernels.SCRATCH_SHAPE, np.uint64)
    compaction_kernels.put_keys(data, spans, 0, secret, slots, 0, 3, scratch, np.uint64(0))
    yield
    keep = np.empty(int(spans[0, 2]), np.uint8)
    kept, nulls = np.zeros(1, np.int64), np.zeros(1, np.int64)
    verdicts = np.full(1, compaction_kernels.KEEP, np.uint8)
    compaction_kernels.select_records(
        data, spans, verdicts, -1, secret, slots, keep, kept, nulls, scratch
    )
    yield
    actions = np.full(1, compaction_kernels.FILTERED, np.uint8)
    with_base, bases = np.zeros(1, np.uint8), np.zeros(1, np.int64)
    out, rewritten = np.empty(2 * len(data), np.uint8), np.empty((1, 2), np.int64)
    compaction_kernels.write_batches(
        data, rows, actions, with_base, bases, keep, kept, out, rewritten
    )
