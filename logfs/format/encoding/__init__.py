"""Conversions between batches and other layouts of records.

Imports `base`, `kernels`, `batches`, `messages` and `text`.

- `batch_builder`: builds sealed batches (complete, with header and CRC) from lines and records, for appends.
- `columnar_encoder`: builds sealed batches from columns.
- `arrow_layout`: copies fields of records to contiguous memory, in Arrow's layout.
- `arrow_batches`: records as batches and tables of pyarrow, with the columns of Spark's Kafka source.
- `hyperloglog`: estimates the number of distinct keys.
"""
