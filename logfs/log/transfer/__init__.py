"""Partitions for other processes and other places. May import all of `log`.

- `partition_copy`: a copy of a partition in another directory, which takes its place.
- `staged_batches`: batches that wait in a partition's directory for their commit.
- `scan_split`: a scan split into parts, for readers in other processes.
- `segment_descriptor`: segments described for other processes.
- `audit`: a segment compared with its indexes, in one pass.
- `segment_stats`: what a segment holds, counted.
"""
