"""Kafka's command line tools, run in the helper's JVM: starting one of their own would cost a second each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kafka.helper import Helper

TOOLS = "org.apache.kafka.tools."


class Output(NamedTuple):
    """What a tool printed, and its exit code."""

    code: int
    out: str
    err: str


class Tools:
    """The tools by name; `run` gives everything, the others what was printed by one that must succeed."""

    def __init__(self, helper: Helper) -> None:
        self.helper = helper

    def run(self, main: str, *arguments: str | Path) -> Output:
        """A tool by its class, below org.apache.kafka.tools."""
        answer = self.helper.call("tool", main=TOOLS + main, arguments=list(map(str, arguments)))
        return Output(**answer)

    def dump(self, *files: Path, options: str = "") -> Output:
        """kafka-dump-log of files; `options` as in `--deep-iteration --print-data-log`."""
        names = ",".join(map(str, files))
        return self.run("DumpLogSegments", "--files", names, *options.split())

    def groups(self, servers: str, *arguments: str) -> str:
        """kafka-consumer-groups, as in `groups(servers, "--describe", "--group", "billing")`."""
        return self._printed(
            "consumer.group.ConsumerGroupCommand", "--bootstrap-server", servers, *arguments
        )

    def offsets(self, servers: str, *arguments: str) -> str:
        """kafka-get-offsets, as in `offsets(servers, "--topic", "orders", "--time", "-1")`."""
        return self._printed("GetOffsetShell", "--bootstrap-server", servers, *arguments)

    def topics(self, servers: str, *arguments: str) -> str:
        """kafka-topics, as in `topics(servers, "--describe")`."""
        return self._printed("TopicCommand", "--bootstrap-server", servers, *arguments)

    def log_dirs(self, servers: str, *arguments: str) -> str:
        """kafka-log-dirs, as in `log_dirs(servers, "--describe")`."""
        return self._printed("LogDirsCommand", "--bootstrap-server", servers, *arguments)

    def _printed(self, main: str, *arguments: str) -> str:
        done = self.run(main, *arguments)
        assert done.code == 0, done.out + done.err
        return done.out
