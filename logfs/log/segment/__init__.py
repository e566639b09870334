"""One segment of a partition: a `.log` file and its indexes. Imports `disk`.

- `segment`: locate, read, seal (Kafka's LogSegment). Begin here.
- `segment_writer`: the appends to an active segment, and when it rolls (`should_roll`).
- `segment_end`: how far readers may read a segment: its length, the offset after it, and its text size.
- `segment_files`: the files of a segment, and which of them are open.
- `segment_listing`: the segments that a directory holds at this moment.
- `file_checks`: checks that refuse a file before its content is read.
- `index`: sparse sorted entries of fixed width: the offset index and the time index.
- `index_entries`: the entries of an index: how readers read them, and how the writer adds more.
- `text_index`: the third index, from bytes of the text views to positions in the file.
- `text_index_cache`: text indexes of segments that a broker wrote, in the user's cache directory.
- `txn_index`: the aborted transactions of a segment.
- `batch_iterator`: the batches of a file one by one; damaged ranges are skipped and reported.
- `batch_scanner`: checks and reads many batches at once in compiled loops, up to the first that is damaged.
- `pipeline`: compiled work in other threads, while the scanning thread reads the next chunks.
- `index_builder`: all indexes of a segment, built from its log.
"""
