"""One log directory. Of the other modules of `logfs.store`, this package imports only `settings`.

- `log_dir`: the lock, the checkpoints and the clean-shutdown marker of a log directory. Begin here.
- `lock`: Kafka's lock, and which process holds it.
- `mark`: small files that contain their own inode number, so that a copy of such a file is recognised.
- `lease`: work on a partition of a directory that another process has locked.
- `recognition`: whether a path is a log directory and, if not, what else the path is.
- `mount_table`: the kernel's mount table.
- `permissions`: the permission bits of a partition's virtual files.
- `topic_id`: the id of a topic, which is stored in the directory of each of its partitions.
"""
