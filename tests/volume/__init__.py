"""Tests of volumes for containers."""
