"""Tests of `logfs.cli`: the commands, in processes of their own."""
