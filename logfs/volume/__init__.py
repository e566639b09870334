"""Volumes for containers: a plugin of Docker and Podman, with which a volume shows a log directory or a part of it.

`server` receives the requests, `driver` executes them, `volume_table` stores the volumes and the ids of their users,
`log_mounts` mounts log directories, and `options` parses the options of a volume. Each mount is a separate daemon
process (`logfs mount`), which continues when the plugin ends. This package may import `logfs.store` and the layers
below it. Begin with `driver`.
"""
