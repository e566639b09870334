"""Segments in an object store: how Kafka and its plugins describe them (KIP-405).

Imports `base`, `batches`, `messages` and `files`.

- `remote_segment`: the description of one remote segment; the states that a remote segment passes through.
- `metadata_record`: the records of `__remote_log_metadata`, which hold the descriptions.
- `chunk_index`: which bytes of an object hold which bytes of a segment.
- `manifest`: two objects that Aiven's plugin stores with each segment: the manifest, and the object with all indexes.
- `custom_metadata`: the custom metadata that logfs adds to the description of a segment that it has copied.
- `object_keys`: the names of the objects, in the layout of Aiven's plugin and of Kafka's `LocalTieredStorage`.
"""
