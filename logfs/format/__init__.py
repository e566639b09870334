"""Kafka's on-disk formats: conversions between bytes and values, with no I/O and no clock."""
