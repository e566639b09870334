"""Helpers that several folders of tests share.

- `requirements`: skips or failures of tests whose requirements the machine does not meet.
- `stores`, `partitions`, `batches`: stores, partitions and batches for tests, and their contents.
- `mounts`, `processes`, `command_line`, `terminal`: running logfs and other programs. `spawner`: a server that forks
  processes of logfs quickly. `class_archive`: makes JVMs start quickly.
- `examples`: how many examples Hypothesis tries.
- `disks`, `crashdisk`: disks that stop, count, record, lose or fail, and the states that a crash may leave.
  `fault_sites`: which calls of the disk have failed in a run.
- `scheduler`: stops one thread while another runs. `lock_order`: locks that check their order. `busy_mount` and
  `step_watch`: a `logfs` whose disk is always busy, and one whose event loop is watched.
- `busy_programs`: programs that open, change and close a log directory in turns.
- `staging`, `legacy_encoder`, `group_records`: staged files, messages of old formats, and records of consumer groups.
- `schemas`: values as Confluent's serializers write them.
- `object_server`, `bucket`: an S3 server, and buckets as Kafka's plugins fill them. `proxy`: a network that breaks.
- `volumes`: a volume plugin, and the requests of container engines.
- `dump_cases`: files that are hard to dump, for both tests of `logfs dump`.
"""
