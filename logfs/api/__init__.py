"""The public classes, which `logfs/__init__.py` exports; docs/python.md describes them.

Each class offers users a part of the engine. Names with an underscore are only for the modules of this folder.

- `store`: `logfs.open`, and the open store as a mapping of its partitions. Begin here.
- `partition`: one partition: append, read, look up, follow.
- `topic`: the partitions of a topic together, and their settings.
- `columns`: records as numpy arrays, and as tables of pyarrow, pandas and polars.
- `arguments`: checks of arguments.
- `records`: makes a record from the arguments of `append`; records with topic and partition.
- `groups`: the committed offsets of consumer groups.
- `chunks`: records of partitions, read a chunk at a time.
- `following`: records as they are appended, for loops and for `async for`.
- `transaction`: a transaction over several partitions.
- `serving`: the store as a broker for Kafka's clients.
- `consumer`: a member of a consumer group.
"""
