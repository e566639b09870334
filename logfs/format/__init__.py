"""Bytes in, values out: Kafka's on-disk formats, with no I/O and no clock."""
