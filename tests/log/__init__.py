"""Tests of `logfs.log`: one partition on real files."""
