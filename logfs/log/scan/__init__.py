"""Segments for other processes that share the files. Imports `disk`, `remote`, `segment`, `read` and `follow`.

- `segment_descriptor`: lets another process find and open a segment, or notice that the segment is gone.
- `scan_split`: a scan split into parts. Begin here.
- `segment_stats`: the records, bytes, keys and times of a segment, counted.
"""
