"""Conversions between batches and other layouts of records.

Imports `base`, `kernels`, `batches`, `messages` and `text`.

- `batch_builder`: builds sealed batches from lines and records, for appends.
- `columnar_encoder`: builds sealed batches from columns.
- `arrow_layout`: copies fields of records to contiguous memory, in Arrow's layout.
- `hyperloglog`: estimates the number of distinct keys.
"""
