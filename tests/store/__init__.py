"""Tests of `logfs.store`: many partitions, their settings, maintenance and commits."""
