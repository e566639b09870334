"""The small files beside the segments, and the commit file. Imports `base` and `batches`.

- `checkpoint`: checkpoints of offsets and of leader epochs, `partition.metadata`, `meta.properties`, the marker of a
  clean shutdown.
- `producer_snapshot`: the state of all producers at one offset.
- `aborted_transactions`: the entries of the transaction index.
- `key_table_format`: the file of a key index, which has the newest offset of each key.
- `commit_file`: the file that records commits. A commit appends staged batches to several partitions at once.
"""
