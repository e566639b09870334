"""Tests of `logfs.spark`, with real Spark: the source, the sink, streams and jobs."""
