"""One partition: segments, their sparse indexes, recovery, and the only door to the disk."""
