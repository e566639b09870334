"""Reading partitions while another process writes them.

Imports `disk`, `remote`, `segment`, `state`, `recovery` and `read`.

- `live_partition`: a read-only partition that is kept up to date with its files. Begin here.
- `live_segment`: one segment of such a partition, whose files are known by inode and not by name.
- `tiered_segment`: one segment that is only in an object store.
"""
