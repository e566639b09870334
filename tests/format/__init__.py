"""Tests of `logfs.format`: encoding and decoding, and the compiled kernels against plain Python code."""
