"""The sink: tasks stage batches beside the log, and the driver commits all of them in one step and only once.

- `options`: the options and columns of a write, checked.
- `partitions`: the partitions of a write: planned in the driver, and looked up where tasks run.
- `staging`: the tasks: rows in Arrow columns to sealed batches in staged files.
- `writer`: the driver: the writers of batches and streams, which commit.
- `each_batch`: micro-batches that `foreachBatch` appends, for the output mode `update`.
"""
