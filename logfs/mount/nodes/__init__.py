"""The nodes of the mount: one class for each kind of file, without FUSE.

Every path begins at the node of `root`. A node answers synchronously. If it would have to wait for the disk in the
thread that must not wait, it raises `WouldBlock` with nothing changed, and the call is repeated in another thread.
"""
