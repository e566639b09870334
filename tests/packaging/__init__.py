"""The packages: wheel, sdist, .deb and image. Those that take minutes are run by `scripts/package --check` alone.

- `machine`: a Debian system in a directory, in which packages are installed.
"""
