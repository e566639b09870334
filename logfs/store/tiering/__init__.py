"""Tiered logs: which segments are in an object store (KIP-405).

- `metadata`: the descriptions of remote segments, in the topic `__remote_log_metadata`.
- `bucket_owner`: which store may change the objects of a bucket.
- `tiered_logs`: the remote segments of each partition, as its log reads them.

The copying and the deletion of remote segments are upkeep: `logfs.store.maintenance.remote_log_manager`.
"""
