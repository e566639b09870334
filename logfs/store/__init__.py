"""Stores of many partitions: log directories, settings, checkpoints, maintenance and the audit.

Each folder and module imports only from those below it in this list; annotations may use the types of any:

- `admin`: requests to a store, made through the mount that holds it or in a store opened for them.
- `observe`: status, metrics and the audit of a store.
- `store`: create, open, delete, close (Kafka's LogManager).
- `loading`: opens the partitions found in the log directories, and follows them.
- `maintenance`: upkeep, retention, compaction, tiering, and moves between log directories.
- `tiering`: which segments of which partitions are in an object store.
- `staged_commits`: appends staged batches to several partitions: to all or to none, and never twice.
- `groups`: the committed offsets of consumer groups, in `__consumer_offsets` (Kafka's GroupCoordinator).
- `checkpoints`: the checkpoint files of all log directories.
- `topic`: appends to all partitions of a topic, and reads them merged by time.
- `internal_topic`: the topics that the store itself writes and reads.
- `registry`: the partitions of a store by name, and the state that its parts share.
- `directory`: one log directory: how a path is recognised as one, its lock, its checkpoints, its permissions.
- `settings`: overrides on disk, and the configuration in force.
- `parallel`: work on many partitions in several threads.

Begin with `store.store`.
"""
