"""What other processes ask of a store: made by the mount that holds it or, without one, in a store opened for it.

- `client`: sends a request, and returns the answer.
- `requests`: the requests, each with what it does to a store.
- `appender`: the same for lines to append.
- `commit_client`: the same for commits of staged batches.
- `mount_channel`: finds the mount; lines of JSON, and errors that cross processes.

Begin with `client`.
"""
