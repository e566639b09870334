"""Partitions that another process writes, read here while they grow.

Imports `disk`, `remote`, `segment`, `state`, `recovery` and `read`.

- `live_partition`: a read-only partition that is kept up to date with its files. Begin here.
- `live_segment`: one segment of such a partition, known by the identities of its files.
- `tiered_segment`: one segment that only an object store has.
"""
