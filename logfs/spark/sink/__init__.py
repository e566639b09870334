"""The sink: tasks stage batches beside the log, and the driver commits them all by one step, and once."""
