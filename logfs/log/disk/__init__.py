"""The only access to files. These modules import nothing else of `log`.

- `disk`: open, read, write, fsync, rename and list, for the engine and for the tests that replace it. Begin here.
- `checked_disk`: the disk of one log directory, which closes for good at the first storage error.
- `latency_histogram`: how long operations take, in classes.
"""
