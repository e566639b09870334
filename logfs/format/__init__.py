"""Kafka's on-disk formats: conversions between bytes and values, with no I/O and no clock.

Each folder imports from those above it in this list:

- `base`: variable-length integers, times, file and directory names.
- `kernels`: the compiled loops over batches and over keys.
- `batches`: records, columns of records, compression, record batches and the older message formats.
- `messages`: Kafka's generated messages, group records, control records.
- `text`: the text views of records: lines, and envelopes of JSON.
- `encoding`: records, lines, columns and Arrow data to sealed batches and back.
- `files`: the small files: checkpoints, producer snapshots, aborted transactions, key tables, the commit file.

`kernel_warmup` compiles the kernels ahead of their first use. docs/format.md describes every byte; begin with
`batches.batch`.
"""
