"""The packages: wheel, sdist, .deb and image. Those that take minutes are run by `scripts/package --check` alone."""
