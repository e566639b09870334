"""Kafka's command line tools. They run in the helper's JVM, because starting a JVM for each takes a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kafka.helper import Helper

TOOLS = "org.apache.kafka.tools."


class Output(NamedTuple):
    """The exit code and the output of a tool."""

    code: int
    out: str
    err: str


class Tools:
    """Kafka's tools by name.

    `run` and `dump` return an `Output`. The other tools must succeed, and their standard output is returned.
    """

    def __init__(self, helper: Helper) -> None:
        self.helper = helper

    def run(self, main: str, *arguments: str | Path) -> Output:
        """Run a tool by the name of its class, below org.apache.kafka.tools."""
        answer = self.helper.call("tool", main=TOOLS + main, arguments=list(map(str, arguments)))
        return Output(**answer)

    def dump(self, *files: Path, options: str = "") -> Output:
        """Run kafka-dump-log on files, with options such as `--deep-iteration --print-data-log`."""
        names = ",".join(map(str, files))
        return self.run("DumpLogSegments", "--files", names, *options.split())

    def groups(self, servers: str, *arguments: str) -> str:
        """Run kafka-consumer-groups, as in `groups(servers, "--describe", "--group", "billing")`."""
        return self._printed(
            "consumer.group.ConsumerGroupCommand", "--bootstrap-server", servers, *arguments
        )

    def offsets(self, servers: str, *arguments: str) -> str:
        """Run kafka-get-offsets, as in `offsets(servers, "--topic", "orders", "--time", "-1")`."""
        return self._printed("GetOffsetShell", "--bootstrap-server", servers, *arguments)

    def topics(self, servers: str, *arguments: str) -> str:
        """Run kafka-topics, as in `topics(servers, "--describe")`."""
        return self._printed("TopicCommand", "--bootstrap-server", servers, *arguments)

    def log_dirs(self, servers: str, *arguments: str) -> str:
        """Run kafka-log-dirs, as in `log_dirs(servers, "--describe")`."""
        return self._printed("LogDirsCommand", "--bootstrap-server", servers, *arguments)

    def _printed(self, main: str, *arguments: str) -> str:
        done = self.run(main, *arguments)
        assert done.code == 0, done.out + done.err
        return done.out
