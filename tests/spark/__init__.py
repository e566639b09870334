"""Tests of `logfs.spark`, with real Spark: the source, the sink, streams and jobs.

- `home`, `class_loading`, `connector`: a Spark that starts quickly, and its connector to Kafka.
- `logs`, `streaming`: logs with records of every kind, and streams that are read to their end.
- `program`: programs with a session of their own. They are `apart`, `cluster`, `driver` and `commands`.
"""
