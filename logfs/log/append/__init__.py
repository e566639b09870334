"""Writing a partition. Imports `disk`, `segment`, `state`, `recovery` and `read`.

- `partition`: append, roll, flush, truncate (Kafka's UnifiedLog). Begin here.
- `fetched_batches`: appends unchanged batches that were fetched from another log, like a follower.
- `staged_batches`: batches that wait in files of a partition's directory until a commit appends them to the log.
- `result`: what an append returns.
- `flusher`: which records are durable, when a flush is due, and the flush itself.
- `validator`: which records and batches a topic accepts, and how they are stored (Kafka's LogValidator).
- `line_framer`: cuts a stream of writes into whole lines or envelopes, and appends these.
- `topic_framer`: does the same with writes to a topic, and chooses each record's partition like Kafka's producer.

A record written to `append` or `append.jsonl` may be refused for these reasons, which are checked in this order:

1. `partition.writable`: the store is read-only. `Partition.check_appendable`: the topic is a mirror, the partition
   was deleted or closed, or an earlier write or fsync failed.
2. `line_framer`: a line of `append.jsonl` is not a valid envelope, or a line exceeds `LineFramer.limit` before its
   newline has arrived.
3. `validator.check_record`: the topic is compacted and the record has no key (a line of `append` never has one), or
   the timestamp of an envelope is out of bounds.
4. `format/encoding/batch_builder`: a batch with the record exceeds `max.message.bytes` or `segment.bytes`.
5. The write to the disk fails: `Partition` cuts off what was written. It also refuses all later appends, unless the
   errno is in `EXHAUSTED`: no space, no quota, a file too large, too many open files.
6. A due or requested sync fails (`flush.messages`, O_SYNC, O_DSYNC): the records are in the log, but not durable. The
   write and all later appends fail. But if the cause is too many open files, only a write fails that has requested
   the sync.

After a storage error such as EIO, `log/disk/checked_disk` refuses all access to the log directory, including reads.

If lines before the refused one were appended, write(2) returns their size. The program then writes the rest again,
and this write fails with the error.

docs/filesystem.md ("Errors") has the errno of each class of error, and `mount/errnos` maps them. The classes are
`NotWritable`, `UnknownPartition` and `PartitionFailed` in steps 1 and 6, and `InvalidEnvelope`, `InvalidRecord` and
`RecordTooLarge` in steps 2 to 4. Step 5 raises the `OSError` itself for an errno in `EXHAUSTED`, and
`PartitionFailed` for other errors. Step 6 raises the `OSError` itself for too many open files. A producer's batch
(`append_batch`, Python only) is refused by `validator.check_batch` and by `state/producers`.
"""
