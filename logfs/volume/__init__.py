"""Volumes for containers: a plugin of Docker and Podman, by which a log directory or a partition is a volume by name.

`server` takes the requests, `driver` does what they ask, `volume_table` keeps the volumes and who uses them,
`log_mounts` mounts log directories, and `options` says what a volume shows. The mounts are daemons of their own
(`logfs mount`), which go on when the plugin ends. This package may import the store and lower layers. Begin with
`driver`.
"""
