"""The smallest formats. These modules import nothing of logfs but its errors.

- `varint`: integers of variable length.
- `quantities`: times, durations, sizes and counts as text.
- `batch_rows`: the columns of the arrays that describe scanned batches, with one row for each batch.
- `crc`: the checksum of batches.
- `murmur2`: the hash that chooses the partition of a key.
- `names`: names of segment files and of partition directories.
- `lazy_numpy`: numpy, imported when it is first used.
"""
