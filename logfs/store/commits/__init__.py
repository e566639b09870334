"""Commits. Imports `settings`, `directory`, `registry` and `checkpoints`.

- `commit`: staged batches that are appended to several partitions at once, and only once.
- `groups`: the committed offsets of consumer groups, in `__consumer_offsets` (Kafka's GroupCoordinator).
"""
