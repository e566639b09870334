"""Conversions between batches and other layouts of records. Imports all folders of `format` but `files`.

- `batch_builder`: lines and records to sealed batches: the path of every append.
- `columnar_encoder`: columns to sealed batches.
- `arrow_layout`: values laid out contiguously, as columnar formats store them.
- `hyperloglog`: the estimated number of distinct keys.
"""
