"""Stores of many partitions: log directories, settings, checkpoints, maintenance and the audit.

Each folder and module imports from those above it in this list:

- `settings`: overrides on disk, and the configuration in force.
- `directory`: one log directory: what a path is, its lock, its checkpoints, its permissions.
- `registry`: the partitions of a store by name, and the state that its parts share.
- `checkpoints`: the checkpoint files of all log directories.
- `commits`: commits of staged batches, and the committed offsets of consumer groups.
- `maintenance`: upkeep, retention, compaction, and moves between log directories.
- `loading`: what is in the log directories becomes partitions, at opening and while following.
- `store`: create, open, delete, close (Kafka's LogManager).
- `observe`: status, metrics and the audit of a store, and access to one that another process holds.

Begin with `store`.
"""
