"""Kafka's on-disk formats: conversions between bytes and values.

No module reads the clock. The only I/O is that of the cache of compiled kernels.

Each folder imports only from those below it in this list:

- `tiered`: metadata records, manifests, chunk indexes and object names of segments in an object store.
- `files`: the small files: checkpoints, producer snapshots, aborted transactions, key indexes, the commit file.
- `encoding`: complete batches from lines, records and columns; Arrow data from columns; estimates of distinct keys.
- `text`: records as text: lines with the values, or JSON envelopes.
- `messages`: messages that Kafka defines by schema files, such as group records; control records.
- `batches`: records, columns of records, compression, record batches and the older message formats.
- `kernels`: the compiled loops over batches, keys and the text of records.
- `base`: variable-length integers, quantities as text, file and directory names.

The module `kernel_warmup`, which may import from all folders, compiles the kernels before their first use.
docs/kafka-storage.md describes Kafka's formats, docs/format.md those of logfs. Begin with `batches.batch`.
"""
