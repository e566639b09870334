"""Spark's own Kafka connector, brought in once by Maven: jars for the session, apart from those of the broker."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from tests.kafka.distribution import INSTALL, class_path, turn

POM = Path(__file__).parent / "pom.xml"


class Connector(NamedTuple):
    """The jars of `format("kafka")`, and why they cannot be had: one of them is empty."""

    jars: list[str]
    missing: str


@functools.cache
def connector() -> Connector:
    """The connector; asked for before there is a session, which must know its jars."""
    if shutil.which("mvn") is None:
        return Connector([], f"mvn is not installed ({INSTALL})")
    with turn():
        path, said = class_path(POM, "connector")
    if said:
        return Connector([], f"Maven cannot bring Spark's Kafka connector: {said}")
    return Connector(path.split(os.pathsep), "")
