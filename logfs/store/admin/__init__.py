"""Requests of other processes to a store. A mount that holds the store executes them, or a store opened for them.

- `client`: sends a request, and returns the answer.
- `requests`: the requests, each with what it does to a store.
- `appender`: appends lines to a partition or a topic.
- `commit_client`: commits staged batches.
- `mount_channel`: finds the mount, and converts requests and errors to lines of JSON.

Begin with `client`.
"""
