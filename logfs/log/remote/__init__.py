"""Segments in an object store (KIP-405): read like the files of a log directory, and copied into the store.

Imports `disk`, and the formats of tiered storage.

Begin with `bucket_disk`: it is the `Disk` of a bucket, so that everything above reads a bucket as it reads a log
directory that another process writes.

- `object_store`: requests to the store; only this module imports obstore.
- `chunk_cache`: fetched chunks of objects, kept in files of the user's cache directory.
- `chunk_reader`: reads bytes of objects through the cache, and fetches ahead for sequential readers.
- `encryption`: the keys of encrypted segments.
- `layouts`: which objects a segment has, and where in them each file of the segment is.
- `bucket_listing`: which partitions and which files of segments a bucket holds.
- `bucket_disk`: the `Disk` of a bucket, as a directory tree of its partitions and their files.
- `tiered_disk`: the `Disk` of remote segments that are known from their metadata.
- `segment_upload`: copies a segment, and reads it back.
- `disks`: which disk reads a log directory.
"""
