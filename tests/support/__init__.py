"""What several folders of tests share.

- `requirements`: what a test needs of the machine, and skips or fails without.
- `stores`, `partitions`, `batches`: their contents, and how tests make them.
- `mounts`, `processes`, `command_line`, `terminal`: running the product, and programs beside it.
- `crashdisk`: disks that record, lose or fail, and what a crash may leave.
- `staging`, `legacy_encoder`, `dump_cases`: staged files, old message formats, and what kafka-dump-log prints.
"""
