"""A program with a query from log to log, for `test_restarts` to kill: `python -m tests.spark.driver JSON`.

It prints `ready` when it has a session, begins at the first line on its stdin, and ends after it has read everything
that is there at the second line.
"""

from __future__ import annotations

import json
import select
import sys

import logfs.spark


def main() -> None:
    """Run the query that the arguments describe."""
    told = json.loads(sys.argv[1])
    spark = logfs.spark.session("driver", master="local[2]", settings=told["settings"])
    print("ready", flush=True)
    sys.stdin.readline()
    rows = (
        spark.readStream.format("logfs")
        .option("subscribe", told["subscribe"])
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", told["limit"])
        # So that a batch has more than one task.
        .option("maxRecordsPerPartition", told["limit"] // 3)
        .load(told["source"])
    )
    # Each partition has its own copy.
    query = (
        rows.selectExpr(
            "concat('copy-', topic) topic", "partition", "key", "value", "headers", "timestamp"
        )
        .writeStream.format("logfs")
        .option("checkpointLocation", told["checkpoint"])
        .start(told["target"])
    )
    print("begun", flush=True)
    while query.isActive and not select.select([sys.stdin], [], [], 0.1)[0]:
        pass
    query.processAllAvailable()
    query.stop()
    spark.stop()
    print("over", flush=True)


if __name__ == "__main__":
    main()
