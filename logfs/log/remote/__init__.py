"""Buckets of an object store, read as log directories (KIP-405). Imports `disk`, and the formats of tiered storage.

Begin with `bucket_disk`: it is the `Disk` of a bucket, so that everything above reads a bucket as it reads a log
directory that another process writes.

- `object_store`: requests to the store; obstore is imported here alone.
- `chunk_cache`: parts of objects that were fetched, kept in files of the user's cache directory.
- `chunk_reader`: reads bytes of objects through the cache, and fetches ahead for sequential readers.
- `bucket_listing`: which partitions and which files of segments a bucket holds.
- `bucket_disk`: the directory tree that is made of them.
- `disks`: which disk reads a log directory.
"""
