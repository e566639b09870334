"""A home of Spark like that of the package pyspark, but with unpacked Python packages.

Spark's Python processes import them from pyspark.zip. A zip file has no place for compiled modules, so that each
process would compile them for most of a second; a stream has two such processes, a session a dozen.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

# Ignored by git, and always at the same place, because archives of classes are for a class path.
CACHE = Path(__file__).parents[2] / "build" / "spark"


def spark_home() -> Path:
    """Return the home, which is made if needed: links to what the package has."""
    import py4j
    import pyspark

    package = Path(pyspark.__file__).parent
    home = CACHE / hashlib.sha256(str(package).encode()).hexdigest()[:16]
    packages = home / "packages"
    links = {home / name: package / name for name in ("bin", "jars")}
    for module in (pyspark, py4j):
        links[packages / module.__name__] = Path(str(module.__file__)).parent
    for path in (package / "python/lib").glob("*.zip"):
        links[home / "python/lib" / path.name] = packages
    for link, target in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            link.symlink_to(target)
    return home
