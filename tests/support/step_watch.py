"""`logfs` with a watch over its event loop: python -m tests.support.step_watch REPORT mount -f …

Counts the steps of trio's tasks that used more than `SLOW_MS` of the processor's time, by the handler that began the
step. At the end it writes to the file REPORT, as JSON, `slow`: the names and times in ms, longest first; and `seen`:
the names of all handlers that were watched. It must be imported before the mount, and so by a process of its own.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson
import trio

from logfs.cli import main
from logfs.mount import handler_guard

SLOW_MS = 1.0


class StepWatch(trio.abc.Instrument):
    """The slow steps by the name of their handler, or else of their task."""

    def __init__(self) -> None:
        self.slow: dict[str, list[float]] = defaultdict(list)
        # The handler that each task is in or was in last.
        self.handlers: dict[trio.lowlevel.Task, str] = {}
        self.seen: set[str] = set()
        self._began_ns = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began_ns = time.thread_time_ns()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        used_ms = (time.thread_time_ns() - self._began_ns) / 1e6
        if used_ms > SLOW_MS:
            self.slow[self.handlers.get(task, task.name)].append(used_ms)

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self.handlers.pop(task, None)


def watch(report: Path) -> int:
    """Run the command line in `sys.argv` under a watch, and write the report."""
    steps = StepWatch()
    run, guard = trio.run, handler_guard._guard

    def watched_run(*arguments: Any, **named: Any) -> Any:
        return run(*arguments, **named, instruments=[steps])

    def named_guard(name: str, handler: Any) -> Any:
        inner = guard(name, handler)

        async def reply(self: Any, *arguments: Any) -> Any:
            task = trio.lowlevel.current_task()
            steps.handlers[task] = f"{name} {self._path_of(name, arguments)}"
            steps.seen.add(name)
            return await inner(self, *arguments)

        return reply

    trio.run = watched_run  # type: ignore[assignment]
    handler_guard._guard = named_guard
    try:
        return main(sys.argv[1:])
    finally:
        slow = {name: sorted(times, reverse=True) for name, times in steps.slow.items()}
        report.write_bytes(orjson.dumps({"slow": slow, "seen": sorted(steps.seen)}))


if __name__ == "__main__":
    sys.exit(watch(Path(sys.argv.pop(1))))
