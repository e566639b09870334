"""Segments for readers in other processes, which share only the files. Imports all of `log` above it.

- `segment_descriptor`: what another process needs to find and open a segment, and to notice that it is gone.
- `scan_split`: a scan split into parts. Begin here.
- `segment_stats`: the records, bytes, keys and times of a segment, counted.
"""
