"""Access to the files of log directories, for all of `log`. These modules import nothing else of `log`.

- `disk`: open, read, write, fsync, rename and list. Tests replace it to inject faults. Begin here.
- `checked_disk`: the disk of one log directory, which refuses file operations after the first storage error.
- `cache_directory`: the user's cache directory, and the removal of its oldest files.
- `bucket_path`: the URL of a bucket as a path.
- `named_file`: the base class of objects that have a path and take little memory.
- `memory`: makes the C library keep freed buffers for reuse.
- `latency_histogram`: histograms of how long operations take.
"""
