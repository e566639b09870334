"""Tests of `logfs.cluster` without a broker."""
