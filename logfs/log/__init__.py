"""One partition: its segments and their sparse indexes, recovery, and all file access of the engine.

Each folder imports from those above it in this list:

- `disk`: the only access to files; latencies; a disk that closes at the first storage error.
- `segment`: one `.log` file, its indexes, and the ways of reading its batches.
- `state`: producers, their snapshots, leader epochs, and segments that wait for their deletion.
- `recovery`: whatever a crash left to valid segments (Kafka's LogLoader).
- `read`: reading by offset, time and key, read_committed, and the text views.
- `append`: the partition that grows (Kafka's UnifiedLog), validation, and lines from a stream of writes.
- `follow`: a partition that another process writes, kept up to date with its files.
- `compaction`: one round of log compaction.
- `transfer`: partitions for other processes and places: copies, staged batches, splits of a scan, the audit.

The engine has no clock and no threads of its own (rule 5). Begin with `append.partition`.
"""
