"""A store of many partitions: its log directories, settings, checkpoints, maintenance and audit.

Each folder and module imports only from those below it in this list. Only annotations may name types from above:

- `admin`: requests to a store, executed by the store's mount or, without a mount, by this process.
- `observe`: status, metrics and the audit of a store.
- `store`: create, open, delete, close (Kafka's LogManager).
- `loading`: loads the partitions in the log directories, and follows what other processes change there later.
- `maintenance`: upkeep, retention, compaction, tiering, and moves between log directories.
- `tiering`: keeps the list of the segments that are in an object store.
- `staged_commits`: appends batches from temporary files to several partitions: to all or to none, and never twice.
- `groups`: the committed offsets of consumer groups, in `__consumer_offsets` (Kafka's GroupCoordinator).
- `transactions`: transactions over several partitions, in `__transaction_state` (Kafka's TransactionCoordinator).
- `group_members`: the members of a consumer group on one machine, and which partitions each of them reads.
- `checkpoints`: the checkpoint files of all log directories.
- `topic`: appends to all partitions of a topic, and reads them merged by time.
- `internal_topic`: the topics that the store itself writes and reads.
- `reached_offset`: whether a log was truncated below the offset that a reader has reached.
- `partition_identity`: whether a name still stands for the same partition.
- `registry`: the partitions of a store by name, and the state that the parts of the store share.
- `directory`: one log directory: recognises its path, and handles its lock, its checkpoints and its permissions.
- `settings`: the settings that are stored on disk, and the values in force.
- `parallel`: work on many partitions in several threads.

Begin with `store.store`.
"""
