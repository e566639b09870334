"""The writers of Spark: tasks write batches to temporary files, and the driver appends all of them atomically.

The temporary files are in the partitions' directories. They are called staged files, and appending them is called a
commit.

- `options`: parses and checks the options of a write, and its columns.
- `partitions`: lists in the driver the partitions to which a write may append, and finds them on each task's machine.
- `staging`: encodes the rows of a task as record batches, in staged files.
- `writer`: the writers of batch and streaming queries, which stage in the tasks and commit in the driver.
- `each_batch`: appends micro-batches by `foreachBatch`, for the output mode `update`.
"""
