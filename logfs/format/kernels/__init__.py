"""Kernels: loops over bytes, which numba compiles and which run without the GIL. Only this folder imports numba.

- `kernel`: the decorators that compile a loop.
- `json_kernels`: measure and write numbers and strings of JSON.
- `batch_kernels`: scan, decode, render and encode batches and their records.
- `text_kernels`: measure records as text, and write them as envelopes or by a format string.
- `compaction_kernels`: hash keys, look them up, and filter the records of batches.

The tests check that each kernel gives the same results as plain Python code. Import these modules inside functions:
numba takes a quarter of a second to load.
"""
