"""Runs every compiled kernel once, so that no request has to wait for the compiler."""

from __future__ import annotations


def warm_up() -> None:
    """Compile the kernels, or load them from numba's cache; a second at the most when cached."""
    import numpy as np

    from logfs.format import kernels
    from logfs.format.batch import Batch
    from logfs.format.builder import BatchFormat, build_lines, build_records
    from logfs.format.record import Record
    from logfs.format.text import View, measure, render

    built = build_lines(b"a\n" * 16, BatchFormat(), 0)
    headers = (("h", b"v"),)
    built.batches += build_records([Record(b"v", b"k", headers)] * 16, BatchFormat(), 0).batches
    for new in built.batches:
        batch = Batch.parse(new.data)
        measure(batch)
        batch.record_at(3)
        kernels.find_record(np.frombuffer(batch.payload, np.uint8), 0, len(batch.payload), 16, 3)
        for view in View:
            render(batch.columns(), view, b"{")
    rows = np.empty((1, kernels.BATCH_COLUMNS), np.int64)
    data = np.frombuffer(bytes(built.batches[0].data), np.uint8)
    kernels.scan_batches(data, 0, False, rows)
    spans = np.ascontiguousarray(rows[:, kernels.SPAN_START :])
    kernels.render_lines(data, spans, np.empty(32, np.uint8))
