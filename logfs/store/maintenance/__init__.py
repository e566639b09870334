"""Background work on the partitions of a store. Imports `tiering`, and what `logfs.store` lists below `tiering`.

- `upkeep`: the periodic tasks, done when they are due. Begin here.
- `context`: the parts of a store that the classes below use, and their base class.
- `schedule`: when each task is due, how long failed work waits, and how fast upkeep reads and writes.
- `retention`: which segments are eligible for deletion, and dropping them.
- `deletion`: deletes partitions, and brings them back until their files are removed.
- `compaction`: which log is the dirtiest, and rounds of compaction.
- `remote_log_manager`: copies segments of tiered logs into an object store, and deletes them there.
- `mover`: moves a partition to another log directory while it is in use.
- `move_recovery`: finishes or undoes the moves that a crash interrupted.
"""
