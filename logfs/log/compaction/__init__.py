"""One round of log compaction (Kafka's Cleaner). Imports `segment` and `append`.

- `cleaner`: a round: which segments become one, and the renames that replace them. Begin here.
- `cleaning`: the arguments and results of a round, which are cheap to import.
- `offset_map`: the newest offset of each key, in bounded memory (Kafka's SkimpyOffsetMap).
- `record_filter`: which records of batches stay, and the bytes of the batches that contain them.
"""
