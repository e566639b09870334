"""A write-behind mount: the kernel collects small writes, and whole lines go on to the `append` files of a mount.

The mount is a process of its own beside the one that serves the store, because a process has one FUSE session, and
because the kernel's writeback cache cannot be on in the main mount: with it the kernel ignores the sizes that a
filesystem reports, so `records` would not grow.

- `session`: the mount from beginning to end. Begin here.
- `operations`: the FUSE handlers and the tree.
- `stream`: what was written through one open file: bytes in, whole lines out.
- `linger`: asks the kernel for what writers have left in its page cache.
"""
