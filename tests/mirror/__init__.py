"""Tests of `logfs.mirror` without a broker.

- `fake_cluster`: a cluster in memory, which answers as a broker does.
"""
