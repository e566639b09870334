"""A write-behind mount: the kernel collects small writes, and whole lines are sent to `append` of the main mount.

The main mount is the one that serves the store. A write-behind mount is a process of its own, because pyfuse3 allows
one FUSE session in a process. The main mount cannot use the kernel's writeback cache itself: with this cache the
kernel ignores the sizes that a filesystem reports, so `records` would not grow.

- `session`: the mount from beginning to end. Begin here.
- `operations`: the FUSE handlers and the tree.
- `stream`: takes the bytes written to one open file, and sends whole lines to the main mount.
- `linger`: makes the kernel send the bytes that it has collected, after a short time.
"""
