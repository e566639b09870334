"""The public classes, which `logfs/__init__.py` exports; docs/python.md describes them.

Each class has the part of the engine that is for users. Names with an underscore are for this folder alone.

- `store`: `logfs.open`, and the open store as a mapping of its partitions. Begin here.
- `partition`: one partition: append, read, look up, follow.
- `topic`: the partitions of a topic together, and their settings.
- `columns`: records as numpy arrays, and as tables of pyarrow, pandas and polars.
- `arguments`: checks of arguments.
- `records`: records to append, and records of several partitions.
- `groups`: the committed offsets of consumer groups.
- `chunks`: records of partitions, read a chunk at a time.
- `following`: records as they are appended, for loops and for `async for`.
- `transaction`: a transaction over several partitions.
- `consumer`: a member of a consumer group.
"""
