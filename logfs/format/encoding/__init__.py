"""Conversions between batches and other layouts of records.

Imports `base`, `kernels`, `batches`, `messages` and `text`.

- `batch_builder`: lines and records to sealed batches, for appends.
- `columnar_encoder`: columns to sealed batches.
- `arrow_layout`: fields of records, copied to contiguous memory in Arrow's layout.
- `hyperloglog`: the estimated number of distinct keys.
"""
