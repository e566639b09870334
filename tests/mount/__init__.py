"""Tests of `logfs.mount`, over real mounts."""
