"""Requests to a store from other processes, executed by the mount that holds it or in a store opened for them.

- `client`: finds the mount, sends a request, and returns the answer.
- `requests`: the requests, each with what it does to a store.
- `appender`: appends lines to a partition or a topic.
- `commit_client`: commits staged batches.

Begin with `client`.
"""
