"""Requests of other processes to a store. A mount that holds the store executes them, or a store opened for them.

- `client`: finds the mount, sends a request, and returns the answer.
- `requests`: the requests, each with what it does to a store.
- `appender`: appends lines to a partition or a topic.
- `commit_client`: commits staged batches.

Begin with `client`.
"""
