"""Appends the micro-batches of a query by `foreachBatch`, exactly once, also in the output mode `update`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame

_QUERY_ID = "sql.streaming.queryId"


class EachBatch:
    """Appends micro-batches to a log, when it is called by `foreachBatch`.

    The id of the query, the name of this object and the id of the batch identify a write. The id of the query is kept
    in the checkpoint. So a batch that Spark sends again is not written again.
    """

    def __init__(self, path: str | Iterable[str], name: str, options: Mapping[str, str]) -> None:
        """Set the log directory `path`, or several, and the options of the writes. Nothing is written yet.

        `name` distinguishes this object from others in the same query.
        """
        paths = [path] if isinstance(path, str) else list(path)
        self._options = {**options, "paths": json.dumps(paths)}
        self._name = name

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Append a micro-batch. Raises `RuntimeError` outside of `foreachBatch`, and the errors of a batch write."""
        query = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if query is None:
            raise RuntimeError(
                "Spark gives no query id here: pass this function to foreachBatch of a streaming query"
            )
        writer = f"{query}-{self._name}" if self._name else query
        identity = {"txnAppId": writer, "txnVersion": str(batch_id)}
        batch.write.format("logfs").mode("append").options(**self._options, **identity).save()
