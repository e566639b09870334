"""What a partition knows of its log. Imports `disk` and `segment`.

- `log_state`: what readers know of a log at one moment. Begin here.
- `producers`: epochs, sequence numbers and open transactions (Kafka's ProducerStateManager).
- `producer_snapshots`: the producers at some offsets, so that opening does not read the whole log.
- `leader_epochs`: which leader epoch began at which offset.
- `deleted_segments`: segments that have left the log, until their files are removed.
"""
