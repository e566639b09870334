"""One log directory. Imports `settings`.

- `log_dir`: its lock, its checkpoints, its clean-shutdown marker. Begin here.
- `lock`: Kafka's lock, and which process holds it.
- `mark`: small files that contain their inode number, so that a copy of them is recognised.
- `lease`: work on a partition of a directory that another process has locked.
- `recognition`: whether a path is a log directory, and if not, what it is.
- `mount_table`: the kernel's mount table.
- `permissions`: the permission bits of a partition's virtual files.
- `topic_id`: the id of a topic, which each of its partitions has.
"""
