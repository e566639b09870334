"""Requests to a store that another process may hold.

If a mount holds the store, it executes the request. Otherwise this process opens the store and executes the request.

- `client`: finds the mount, sends a request, and returns the answer.
- `requests`: the types of requests; each has a method that executes it in a store.
- `appender`: appends lines to a partition or a topic.
- `commit_client`: appends the batches of staged (temporary) files to several partitions.

Begin with `client`.
"""
