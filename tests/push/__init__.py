"""Tests of `logfs.push` without a broker."""
