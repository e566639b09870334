"""Tiered logs (KIP-405): which of their segments are in an object store, and which store may change them there.

- `metadata`: the descriptions of remote segments, in the topic `__remote_log_metadata`.
- `bucket_owner`: which store may change the objects of a bucket.
- `tiered_logs`: the remote segments of each partition, as its log reads them.

`logfs.store.maintenance.remote_log_manager` copies segments into the object store, and deletes them there.
"""
