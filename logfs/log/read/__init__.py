"""Reading a list of segments. Imports `disk`, `segment`, `state` and `recovery`.

- `reader`: records by offset and by time, and in bulk as columns. Begin here.
- `log`: a partition's log with its published state, and its reader of committed records.
- `read_committed`: which batches isolation level read_committed hides, and the text of the other batches.
- `text_view`: the records as one long text: `records` and `records.jsonl` of the mount. A view keeps its segments
  after they have left the log.
- `text_renderer`: the text of one segment, rendered in blocks.
- `merge`: the records of several logs as text, in the order of time.
- `merged_text`: the text of several logs as one growing file: `records` of a topic.
- `key_index`: where the newest record of each key is.
- `key_tables`: the tables of the key index, in a file and in memory.
- `recent_keys`: the keys of the newest records.
"""
