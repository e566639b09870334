"""The filesystem over a store. Only this package imports pyfuse3 and trio; the modules in `nodes` do not.

- `session`: one mount from beginning to end: store, FUSE, upkeep, signals. Begin here.
- `mounting`: mounting and unmounting, for the main mount and for write-behind mounts.
- `protocol`: the FUSE handlers of the main mount: find the node of a request, call it, answer.
- `handlers`: the base class of the FUSE handlers of the main mount and of write-behind mounts.
- `inode_table`: the nodes that the kernel knows, by inode number.
- `nodes`: one class for each kind of file, with no FUSE in it.
- `admin_requests`: the administrative requests in progress.
- `growing_sizes`: which size of a growing file the kernel is told, and how long the kernel may keep it.
- `sharers`: the threads that may share an open file.
- `threads`: worker threads, 24 of which are started before the mount serves requests.
- `watchdog`: the process that aborts the FUSE connection if the daemon is killed.
- `handler_guard`: the error boundary: turns each error of a handler into an errno.
- `errnos`: the mapping from errors to errno, and the last errors for `.logfs/errors`.
- `mounted_mirror`: the mirror of a Kafka cluster that a mount runs (`--mirror`).
- `mount_metrics`: the metrics of the mount, for `.logfs/metrics`.
- `metrics_server`: the same metrics over HTTP (`--metrics-listen`).
- `remount`: changes the flags of an existing mount.
- `write_behind`: a second mount that collects small writes in the page cache.
"""
