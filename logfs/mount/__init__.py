"""The filesystem over a store. Only this package imports pyfuse3 and trio; the modules of `nodes` import neither.

- `session`: one mount from beginning to end: store, FUSE, upkeep, signals. Begin here.
- `mounting`: mounting and unmounting, for both kinds of mount.
- `protocol`: the FUSE handlers: find the node, call it, answer.
- `handlers`: what the handlers of both kinds of mount share.
- `inode_table`: the inodes that the kernel knows.
- `nodes`: one class for each kind of file, with no FUSE in it.
- `admin_requests`: the administrative requests that run.
- `growing_sizes`: the sizes of growing files that the kernel is told.
- `sharers`: the threads that may share an open file.
- `threads`: worker threads, most of them started before the mount serves requests.
- `watchdog`: the process that aborts the connection if the daemon is killed.
- `handler_guard`: the error boundary: only an errno leaves a handler.
- `errnos`: the mapping from errors to errno, and the last errors for `.logfs/errors`.
- `mounted_mirror`: a mirror of a Kafka cluster beside the mount's own work.
- `mount_metrics`: the metrics of the mount, for `.logfs/metrics`.
- `remount`: other flags for an existing mount.
- `write_behind`: a mount of its own that collects small writes in the page cache.
"""
