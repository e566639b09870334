"""docs/install.md on a fresh Debian, word for word: from nothing to a mounted log."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.packaging.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.packaging.machine import Machine


@pytest.mark.parametrize("way", ["package", "wheel", "clone"])
def test_the_document_leads_to_a_mounted_log(
    make_machine: Callable[[], Machine], deb: Path, wheel: Path, way: str
) -> None:
    """Each way ends with a mount into which a line can be written. The time of its commands is printed."""
    text = (ROOT / "docs/install.md").read_text()
    (block,) = re.findall(rf"^## With the {way}\n.*?^```sh\n(.*?)^```", text, re.M | re.S)
    # The package in the document is that of the newest release.
    block = re.sub(r"logfs_\S+\.deb", deb.name, block)
    machine = make_machine()
    machine.put(deb)
    machine.put(wheel)
    subprocess.run(["git", "clone", "-q", ROOT, machine.root / "root/logfs"], check=True)
    shown = machine.run(
        f"""
        {"cd logfs" if way == "clone" else ""}
        SECONDS=0
        {block}
        took=$SECONDS
        mkdir ~/mnt/orders-0
        echo hello >>~/mnt/orders-0/append
        cat ~/mnt/orders-0/records
        echo "With the {way}: $took s"
        """
    )
    print(shown.splitlines()[-1])
    assert shown.splitlines()[-2] == "hello"
