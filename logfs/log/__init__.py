"""One partition: its segments and their sparse indexes, recovery, and all access to files.

Each module or folder imports only from the items below it in this list:

- `audit`: a segment compared with its indexes, in one pass.
- `partition_copy`: a copy of a partition in another directory, which then replaces the original.
- `scan`: what other processes need to read segments, the parts of a scan, and counts of the records of a segment.
- `compaction`: one round of log compaction.
- `follow`: reads a partition that another process writes, and follows the changes of its files.
- `append`: writes a partition (Kafka's UnifiedLog), checks what is appended, and cuts streams of writes into lines.
- `read`: reading by offset, time and key, read_committed, and the text views.
- `recovery`: loads the files of a partition, and repairs those that a crash left (Kafka's LogLoader).
- `state`: the state of a log: producers, their snapshots, leader epochs, segments that wait for their deletion.
- `segment`: one `.log` file, its indexes, and the ways of reading its batches.
- `remote`: buckets of an object store as directory trees, and uploads.
- `disk`: the only access to files; a disk that refuses operations after its first storage error; histograms of
  latencies.

The modules have no clock and no tasks of their own (rule 5 of docs/architecture.md). Begin with `append.partition`.
"""
