"""Corpora of OPUS: their addresses and licences for `tmt init`, and the download of sources with a `url`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from hashlib import file_digest, sha256
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen
from zipfile import is_zipfile

import yaml

from transformer_mt.data.data_config import Source
from transformer_mt.data.text_files import check_is_regular
from transformer_mt.errors import UserError
from transformer_mt.system.files import find_existing_parent, format_bytes, read_free_disk_bytes, report_full_disk
from transformer_mt.system.log import ProgressReport, log_rank0

API = "TMT_OPUS_API"
LICENSES = "TMT_OPUS_LICENSES"
"""Environment variables that replace both addresses, for example by those of a mirror."""
DEFAULT_API = "https://opus.nlpl.eu/opusapi/"
DEFAULT_LICENSES = "https://raw.githubusercontent.com/Helsinki-NLP/OPUS/main/corpus"
TIMEOUT_SECONDS = 30.0  # without an answer
CHUNK_BYTES = 1 << 20
MAX_ANSWER_BYTES = 10_000_000


class OpusCorpus(NamedTuple):
    """A corpus of OPUS in the Moses format."""

    name: str
    n_pairs: int
    source: dict[str, object]  # keys of the source of training pairs


# --- catalogue --------------------------------------------------------------------------------------------------------


def find_corpora(languages: tuple[str, str], names: Sequence[str], folder: str) -> list[OpusCorpus]:
    """Return the newest version of some corpora. `folder` is where their archives will be saved.

    Raises `UserError` if OPUS cannot be reached, or a corpus is not in both languages.
    """
    return [_find_corpus(languages, name, folder) for name in names]


def _find_corpus(languages: tuple[str, str], name: str, folder: str) -> OpusCorpus:
    src, tgt = languages
    query = {"source": src, "target": tgt, "corpus": name, "preprocessing": "moses", "version": "latest"}
    address = f"{os.environ.get(API) or DEFAULT_API}?{urlencode(query)}"
    try:
        (found, *_) = cast(list[dict[str, Any]], json.loads(_fetch(address))["corpora"])
        url, version, n_pairs = str(found["url"]), str(found["version"]), int(found["alignment_pairs"])
    except (OSError, HTTPException) as error:
        raise UserError(
            f"{address}: OPUS cannot be reached ({error}); without a network, download the Moses archives elsewhere,\n"
            f"copy them here, and pass one: tmt init {name}.zip --src-lang {src} --tgt-lang {tgt}"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"OPUS has no corpus {name} of {src} and {tgt}: correct --corpora or --opus") from None
    if not re.match("https?://", url):
        raise UserError(f"{address}: answers with the address {url[:80]}, which is not HTTP")
    file = re.sub(r"[^\w.-]", "_", f"{name}-{version}.{src}-{tgt}.zip")
    return OpusCorpus(name, n_pairs, {"table": f"{folder}/{file}", "url": url, "license": _find_license(name)})


def _find_license(name: str) -> str:
    """Return the licence of a corpus as OPUS states it, or where to look."""
    try:
        info: Any = yaml.safe_load(_fetch(f"{os.environ.get(LICENSES) or DEFAULT_LICENSES}/{name}/info.yaml"))
        text = re.sub("<[^>]*>", "", str(info["license"])).strip()
    except (OSError, HTTPException, ValueError, yaml.YAMLError, KeyError, TypeError):
        text = ""
    return text[:200] if text not in ("", "unknown", "empty") else f"see https://opus.nlpl.eu/{name}"


def _fetch(address: str) -> str:
    with urlopen(Request(address, headers={"User-Agent": "tmt"}), timeout=TIMEOUT_SECONDS) as answer:
        return answer.read(MAX_ANSWER_BYTES).decode()


# --- download ---------------------------------------------------------------------------------------------------------


def fetch_sources(sources: Sequence[Source]) -> None:
    """Download the files of sources that have a `url`, if they are missing. First log the size and licence of each.

    Raises `UserError` if a download fails, which the next call resumes, or a checksum differs.
    """
    wanted = {source.table[0]: source for source in sources if source.url}
    missing = [_Download(source) for name, source in wanted.items() if not Path(name).exists()]
    for download in missing:
        log_rank0(f"download: {download.describe()}")
    for download in missing:
        download.run()
    for name, source in wanted.items():
        check_is_regular(Path(name))
        if source.sha256 and (found := _hash_file(Path(name))) != source.sha256.lower():
            raise UserError(f"{name}: has the SHA-256 {found}, not {source.sha256}; delete it, or correct sha256")


class _Download:
    """A file to be downloaded. An unfinished one has the hash of its version in its name, and is resumed."""

    def __init__(self, source: Source) -> None:
        self._url, self._license = str(source.url), source.license
        self._target = Path(source.table[0])
        with self._report_failure(), self._open("HEAD", {}) as answer:
            self._size = int(answer.headers.get("Content-Length") or 0)
            self._tag = (answer.headers.get("ETag") or "").strip('"')
        version = sha256(f"{self._url} {self._size} {self._tag}".encode()).hexdigest()[:8]
        self._part = self._target.with_name(f"{self._target.name}.{version}.part")

    def describe(self) -> str:
        size = format_bytes(self._size) if self._size else "unknown"
        return f"{self._url} (size {size}, licence {self._license or 'unknown'}) to {self._target}"

    def run(self) -> None:
        """Download the file, or the rest of it, and check its size, and its MD5 if the server states it."""
        free = read_free_disk_bytes(find_existing_parent(self._target))
        if self._size > free:
            raise UserError(f"{self._target}: needs {format_bytes(self._size)}, and {format_bytes(free)} are free")
        self._target.parent.mkdir(parents=True, exist_ok=True)
        n_bytes = self._part.stat().st_size if self._part.exists() else 0
        if not n_bytes or n_bytes != self._size:
            with report_full_disk(self._target), self._report_failure():
                self._read(n_bytes)
        n_bytes = self._part.stat().st_size
        if self._size and n_bytes < self._size:
            raise self._failure(f"the connection ended after {n_bytes:,} of {self._size:,} bytes")
        if not self._size and self._target.suffix == ".zip" and not is_zipfile(self._part):
            self._part.unlink()
            raise self._failure("the connection ended before the end of the archive")
        digest = _hash_file(self._part, "md5") if re.fullmatch("[0-9a-f]{32}", self._tag) else self._tag
        if n_bytes > self._size > 0 or digest != self._tag:
            self._part.unlink()
            raise self._failure("the checksum or size differs")
        self._part.replace(self._target)
        log_rank0(f"download: {self._target} is complete; sha256: {_hash_file(self._target)} in its source pins it")

    def _read(self, n_bytes: int) -> None:
        with self._open("GET", {"Range": f"bytes={n_bytes}-"} if n_bytes else {}) as answer:
            is_rest = answer.status == HTTPStatus.PARTIAL_CONTENT
            progress = ProgressReport(f"download: {self._target.name}:", self._size or None, "bytes")
            with self._part.open("ab" if is_rest else "wb") as file, progress.show():
                while chunk := answer.read(CHUNK_BYTES):
                    file.write(chunk)
                    progress.update(file.tell())

    def _open(self, method: str, headers: dict[str, str]) -> Any:
        return urlopen(
            Request(self._url, headers={"User-Agent": "tmt", **headers}, method=method), timeout=TIMEOUT_SECONDS
        )

    @contextmanager
    def _report_failure(self) -> Generator[None]:
        try:
            yield
        except (OSError, HTTPException) as error:
            if getattr(error, "errno", None) is not None and not isinstance(error, URLError | ConnectionError):
                raise  # of the disk
            raise self._failure(str(error)) from None

    def _failure(self, reason: str) -> UserError:
        return UserError(
            f"{self._url}: cannot be downloaded: {reason}; the same command resumes.\n"
            f"Without a network: download it elsewhere, and save it as {self._target}"
        )


def _hash_file(path: Path, algorithm: str = "sha256") -> str:
    with path.open("rb") as file:
        return file_digest(file, algorithm).hexdigest()
