"""Partitions for other processes and other places. May import all of `log`.

- `partition_copy`: a copy of a partition in another directory, which then replaces the original.
- `staged_batches`: batches that wait in a partition's directory for their commit.
- `scan_split`: a scan split into parts, for readers in other processes.
- `segment_descriptor`: what another process needs to find and open a segment, and to notice that it is gone.
- `audit`: a segment compared with its indexes, in one pass.
- `segment_stats`: the records, bytes, keys and times of a segment, counted.
"""
