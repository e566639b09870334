"""The work on partitions that no caller waits for. Imports `tiering` and the parts of `store` listed below it.

- `upkeep`: the periodic tasks, done when they are due. Begin here.
- `context`: what the classes below work with.
- `schedule`: when each task is due, how long failed work waits, and how fast upkeep reads and writes.
- `retention`: which segments are eligible for deletion, and dropping them.
- `compaction`: which log is the dirtiest, and rounds of compaction.
- `remote_log_manager`: copies segments of tiered logs into an object store, and deletes them there.
- `mover`: moves a partition to another log directory while it is in use.
- `move_recovery`: finishes or undoes the moves that a crash interrupted.
"""
