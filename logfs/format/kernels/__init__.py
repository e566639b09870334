"""The loops that numba compiles: one pass over bytes each, without the GIL. Only this folder's modules import numba.

- `batch_kernels`: scan, decode, render and encode batches and their records.
- `text_kernels`: measure the text of records, and print records by a format string.
- `compaction_kernels`: hash keys, look them up, and filter the records of batches.

The tests hold each kernel equal to a plain Python twin. Import these modules inside functions: numba takes a quarter
of a second to load.
"""
