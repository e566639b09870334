"""Appends each micro-batch of a streaming query exactly once, by `foreachBatch`. The output mode may be `update`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame

_QUERY_ID = "sql.streaming.queryId"


class EachBatch:
    """A function for `foreachBatch`, which appends micro-batches to a log.

    Each write is identified by the id of the query, the name of this object and the id of the micro-batch. Spark
    keeps the id of the query in its checkpoint. So if Spark processes a micro-batch again, it is not written again.
    """

    def __init__(self, path: str | Iterable[str], name: str, options: Mapping[str, str]) -> None:
        """Prepare to append to the log directories `path`. Nothing is written yet.

        `name` distinguishes this object from other `EachBatch` objects in the same query. `options` are those of
        `df.write.format("logfs")`, such as `topic`.
        """
        paths = [path] if isinstance(path, str) else list(path)
        self._options = {**options, "paths": json.dumps(paths)}
        self._name = name

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Append the micro-batch `batch`, unless the query has appended the micro-batch `batch_id` before.

        Raises the errors of `df.write.format("logfs")`, and `RuntimeError` outside of `foreachBatch`.
        """
        query = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if query is None:
            raise RuntimeError(
                "Spark gives no query id here: pass this function to foreachBatch of a streaming query"
            )
        writer = f"{query}-{self._name}" if self._name else query
        identity = {"txnAppId": writer, "txnVersion": str(batch_id)}
        batch.write.format("logfs").mode("append").options(**self._options, **identity).save()
