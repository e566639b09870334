"""The sink: tasks stage batches beside the log, and the driver commits all of them in one step and only once."""
