"""One partition: its segments and their sparse indexes, recovery, and all file access of the engine."""
