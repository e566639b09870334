"""The state of a log. Imports `disk` and `segment`.

- `log_state`: the segments and offsets of a log at one moment, as readers see it. Begin here.
- `producers`: epochs, sequence numbers and open transactions (Kafka's ProducerStateManager).
- `producer_snapshots`: files with the producers at some offsets, so that opening need not read the whole log.
- `leader_epochs`: which leader epoch began at which offset.
- `deleted_segments`: segments that have left the log, until their files are removed.
"""
