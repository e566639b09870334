"""The nodes of the mount: one class for each kind of file, without FUSE.

Every path begins at the node of `root`. Methods of nodes are functions, not coroutines. A method that would wait for
the disk on the trio thread changes nothing and raises `WouldBlock`; `protocol` then calls it in a worker thread.

- `base`: the base classes of nodes and handles: the interface that `protocol` calls. Begin here.
- `root`: the root directory, and `.logfs/`.
- `partition`: the directory of one partition.
- `folder`: the base class of directories in a partition directory. `growing`: the base class of files that grow.
- `append`: `append` and `append.jsonl`.
- `topics`: `topics/`, with one directory for each topic.
- `text_file`: `records`, `records.jsonl` and ranges. `record`: one record.
- `offsets`, `time`, `keys`: records by offset, by time and by key.
- `segments`: the files on the disk: `.log` files, indexes and others.
- `config`, `groups`: settings, and committed offsets.
- `generated`: files whose content a function returns, such as `status.json`.
- `admin`: `.logfs/admin`.
"""
