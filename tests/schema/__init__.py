"""Tests of the decoding of values by schemas."""
