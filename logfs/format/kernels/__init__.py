"""The loops that numba compiles: one pass over bytes each, without the GIL. Only this folder's modules import numba.

- `batch_kernels`: scan, decode, render and encode batches and their records.
- `compaction_kernels`: hash keys, look them up, and filter the records of batches.

The tests hold each kernel equal to a plain Python twin. Import these modules inside functions: numba takes a quarter
of a second to load.
"""
