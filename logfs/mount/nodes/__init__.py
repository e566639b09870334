"""What every path of the mount means: one class for each kind of file, with no FUSE in it.

`root` is where a path begins. A node answers synchronously; where it would have to wait for the disk in the thread
that must not, it raises `WouldBlock` with nothing changed, and is asked again in another.
"""
