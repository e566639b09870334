"""The sink: tasks write batches to staged files beside the log, and the driver commits all of them atomically, once.

- `options`: the options and columns of a write, checked.
- `partitions`: the partitions of a write: planned in the driver, and looked up on the machines of the tasks.
- `staging`: encodes the rows of a task as sealed batches, in staged files.
- `writer`: the writers of batches and streams: they stage in tasks and commit in the driver.
- `each_batch`: micro-batches that `foreachBatch` appends, for the output mode `update`.
"""
