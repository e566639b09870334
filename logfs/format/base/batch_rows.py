"""The columns of the rows that `batch_kernels.scan_batches` writes: int64[BATCH_COLUMNS] for each batch.

The columns before SPAN_START describe the batch. The other columns are the span of its records: their start and end
position in the scanned bytes, their number, and the base offset and base timestamp to add to their deltas.
`batch_kernels.decode_spans` decodes the records of spans.
"""

from __future__ import annotations

# The columns for the batch: its byte position in the scanned bytes, its size in bytes, and values from its header.
POSITION, SIZE, CRC, ATTRIBUTES = 0, 1, 2, 3
NEXT_OFFSET, MAX_TIMESTAMP, LEADER_EPOCH, PRODUCER_ID = 4, 5, 6, 7
# The columns for the records: the bytes [start, end) that hold them, their number, base offset and base timestamp.
SPAN_START, SPAN_END, SPAN_COUNT, SPAN_BASE_OFFSET, SPAN_BASE_TIMESTAMP = 8, 9, 10, 11, 12
BATCH_COLUMNS = 13
