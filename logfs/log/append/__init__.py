"""Writing a partition. Imports `disk`, `segment`, `state`, `recovery` and `read`.

- `partition`: append, roll, flush, truncate (Kafka's UnifiedLog). Begin here.
- `flusher`: what is durable, when a flush is due, and the flush.
- `validator`: which records and batches a topic accepts, and how they are stored (Kafka's LogValidator).
- `line_framer`: a stream of writes to whole lines or envelopes, and these to appends.
"""
