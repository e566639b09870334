"""Stores of many partitions: log directories, settings, checkpoints, upkeep and the audit."""
