"""Reading segments in other processes, and counting what is in them.

Imports `disk`, `remote`, `segment`, `read` and `follow`.

- `segment_descriptor`: lets another process find and open a segment, or notice that the segment is gone.
- `scan_split`: a scan split into parts. Begin here.
- `segment_stats`: counts the records, bytes, keys and times of a segment.
"""
