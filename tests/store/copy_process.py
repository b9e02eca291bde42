"""A copy in a process of its own, which is killed while it handles a row: `SOURCE TARGET ROW`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from itertools import count
from typing import Any

from dragoman.store.connection import Row
from dragoman.store.maintenance import row_batches
from dragoman.store.maintenance.copy import TableCopy
from dragoman.store.maintenance.data_folder_copy import transfer
from dragoman.store.maintenance.location import DatabaseLocation
from dragoman.store.maintenance.progress import Progress


def main(source: str, target: str, at: int) -> None:
    """Copy in batches of a few rows; end by SIGKILL when row `at` is about to be written."""
    row_batches.BATCH_ROWS = 3
    params, numbers = TableCopy.params, count()

    def params_or_end(table: TableCopy, row: Row) -> Mapping[str, Any]:
        if next(numbers) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return params(table, row)

    setattr(TableCopy, "params", params_or_end)  # noqa: B010 - mypy refuses to assign a method
    transfer(DatabaseLocation.parse(source), DatabaseLocation.parse(target), progress=Progress())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
