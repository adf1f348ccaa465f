"""Arrow tables of sentence pairs `src | tgt | file | line` on disk, written and read block by block."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLUMNS = {"src": "string", "tgt": "string", "file": "int32", "line": "int64"}

Integers = Sequence[int] | NDArray[np.integer[Any]]


class TableWriter:
    """Writes a table, and hashes its text."""

    def __init__(self, path: Path, extra_columns: Sequence[str] = ()) -> None:
        import pyarrow

        self._pa: Any = pyarrow
        kinds = {**COLUMNS, **dict.fromkeys(extra_columns, "int64")}
        self._schema = self._pa.schema([(name, getattr(self._pa, kind)()) for name, kind in kinds.items()])
        self._digest = hashlib.sha256()
        self._file = self._pa.OSFile(str(path), "wb")
        self._stream = self._pa.ipc.new_stream(self._file, self._schema)
        self.n_pairs = 0

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stream.close()
        self._file.close()

    def write(self, src: Sequence[str], tgt: Sequence[str], *columns: Integers) -> None:
        """Append pairs, with their `file`, `line` and any extra columns."""
        self.n_pairs += len(src)
        self._digest.update("".join(f"{a}\n{b}\n" for a, b in zip(src, tgt, strict=True)).encode())
        arrays = [
            self._pa.array(column, kind) for column, kind in zip((src, tgt, *columns), self._schema.types, strict=True)
        ]
        self._stream.write_batch(self._pa.record_batch(arrays, schema=self._schema))

    def text_hash(self) -> str:
        """Return the SHA-256 of the text that was written so far."""
        return self._digest.hexdigest()


def read_batches(path: str | Path) -> Iterator[Any]:
    """Yield the record batches of a table. Unlike a memory map, this keeps its pages out of resident memory."""
    import pyarrow

    pa: Any = pyarrow
    with pa.OSFile(str(path)) as file:
        yield from pa.ipc.open_stream(file)


def take_rows(batch: Any, rows: NDArray[np.int64]) -> Any:
    """Return some rows of a record batch."""
    import pyarrow

    pa: Any = pyarrow
    return batch.take(pa.array(rows))
