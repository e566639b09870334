"""The nodes of the mount: one class for each kind of file, without FUSE.

Every path begins at the node of `root`. A node answers synchronously. If it would have to wait for the disk in the
thread that must not wait, it raises `WouldBlock` with nothing changed, and the call is repeated in another thread.

- `base`: the base classes of nodes and handles: the interface that `protocol` calls. Begin here.
- `root`: the root directory, and `.logfs/`.
- `partition`: the directory of one partition.
- `folder`: the base class of directories in a partition directory. `growing`: the base class of files that grow.
- `append`: `append` and `append.jsonl`.
- `topics`: `topics/`, with one directory for each topic.
- `text_file`: `records`, `records.jsonl` and ranges. `record`: one record.
- `offsets`, `time`, `keys`: records by offset, by time and by key.
- `segments`: the real files of the partition.
- `config`, `groups`: settings, and committed offsets.
- `generated`: files whose content is generated on access, such as `status.json`.
- `admin`: `.logfs/admin`.
"""
