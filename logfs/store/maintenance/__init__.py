"""Background work on the partitions of a store.

The modules here may import `tiering`, and everything below it in the list of `logfs.store`.

- `upkeep`: the periodic tasks, done when they are due. Begin here.
- `context`: the parts of a store that the classes below use, and their base class.
- `schedule`: when each task is due, how long failed work waits, and how fast upkeep reads and writes.
- `retention`: finds the segments that are eligible for deletion, and deletes them.
- `deletion`: deletes partitions, and restores deleted partitions while their files still exist.
- `compaction`: finds the dirtiest log, and compacts logs in rounds.
- `remote_log_manager`: copies segments of tiered logs into an object store, and deletes them there.
- `mover`: moves a partition to another log directory while it is in use.
- `move_recovery`: finishes or undoes the moves that a crash interrupted.
"""
