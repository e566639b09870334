"""Spark's own Kafka connector, downloaded once by Maven: jars for the session, separate from those of the broker."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from tests.kafka.distribution import INSTALL, class_path, turn

POM = Path(__file__).parent / "pom.xml"


class Connector(NamedTuple):
    """The jars of `format("kafka")`, or the reason why they are not available. One of the two is empty."""

    jars: list[str]
    missing: str


@functools.cache
def connector() -> Connector:
    """Return the connector. A session must know the jars when it is created, so call this before."""
    if shutil.which("mvn") is None:
        return Connector([], f"mvn is not installed ({INSTALL})")
    with turn():
        path, said = class_path(POM, "connector")
    if said:
        return Connector([], f"Maven cannot bring Spark's Kafka connector: {said}")
    return Connector(path.split(os.pathsep), "")
