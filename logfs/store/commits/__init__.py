"""Two kinds of commits: of staged batches, and of the offsets of consumer groups.

Imports `directory`, `registry` and `internal_topic`.

- `commit`: appends staged batches to several partitions: to all or to none, and never twice.
- `groups`: the committed offsets of consumer groups, in `__consumer_offsets` (Kafka's GroupCoordinator).
"""
