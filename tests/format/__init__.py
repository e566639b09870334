"""Tests of `logfs.format`: bytes in, values out, and compiled kernels against plain twins."""
