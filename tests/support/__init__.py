"""Helpers that several folders of tests share.

- `requirements`: skips or failures of tests whose requirements the machine does not meet.
- `stores`, `partitions`, `batches`: stores, partitions and batches for tests, and their contents.
- `mounts`, `processes`, `command_line`, `terminal`: running logfs and other programs. `spawner`: a server that forks
  processes of logfs quickly.
- `examples`: how many examples Hypothesis tries.
- `crashdisk`: disks that record, lose or fail, and the states that a crash may leave.
- `staging`, `legacy_encoder`, `group_records`: staged files, messages of old formats, and records of consumer groups.
- `dump_cases`: files that are hard to dump, for both tests of `logfs dump`.
"""
