"""Corpora of OPUS from a local server: configuration, download, resumed parts, checksums."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from hashlib import md5, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error

from transformer_mt.data.data_config import Source
from transformer_mt.data.sources import load_corpus, load_pairs
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.tools.downloads.opus import fetch_sources


def make_archive() -> bytes:
    file = BytesIO()
    with ZipFile(file, "w") as archive:
        for side, language in enumerate(("en", "de")):
            archive.writestr(f"T.de-en.{language}", "".join(f"{pair[side]}\n" for pair in load_pairs("test")[:200]))
    return file.getvalue()


class Opus:
    """A server with one archive, which breaks the first download after `broken_after` bytes."""

    def __init__(self) -> None:
        self.archive = make_archive()
        self.broken_after: int | None = None
        self.tag = md5(self.archive).hexdigest()
        self.states_length = True
        self.ranges: list[str | None] = []
        opus = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                self.answer(b"", len(opus.archive))

            def do_GET(self) -> None:
                if self.path.startswith("/api"):
                    found = {"url": f"{opus.url}/T.zip", "version": "v1", "alignment_pairs": 200, "size": 1}
                    return self.answer(json.dumps({"corpora": [found] if "corpus=T&" in self.path else []}).encode())
                if self.path.startswith("/licenses"):
                    return self.answer(b"license: <a href='x'>CC BY 2.0</a>\n")
                wanted = self.headers.get("Range")
                opus.ranges.append(wanted)
                start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
                body = opus.archive[start:]
                n_bytes, opus.broken_after = opus.broken_after or len(body), None
                return self.answer(body[:n_bytes], len(body), 206 if wanted else 200)

            def answer(self, body: bytes, length: int | None = None, status: int = 200) -> None:
                self.send_response(status)
                if opus.states_length:
                    self.send_header("Content-Length", str(len(body) if length is None else length))
                self.send_header("ETag", f'"{opus.tag}"')
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def opus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opus]:
    server = Opus()
    threading.Thread(target=server.server.serve_forever, args=(0.05,), daemon=True).start()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMT_OPUS_API", f"{server.url}/api")
    monkeypatch.setenv("TMT_OPUS_LICENSES", f"{server.url}/licenses")
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.mark.slow
def test_corpora_of_opus_are_configured_downloaded_and_read(opus: Opus, tmt: Tmt) -> None:
    assert_succeeded(tmt("init", "--opus", "de-en", "--corpora", "T"))
    config = configuration.load(Path("mine.yaml"))
    (source,) = config.data.sources
    assert (source.url, source.license) == (f"{opus.url}/T.zip", "CC BY 2.0")
    assert_user_error(tmt("train", "--config", "mine.yaml"), source.table[0], "tmt prepare", str(source.url))
    done = tmt("prepare", "mine.yaml", "--workers", "1", "tokenizer.vocab_size=500")
    assert_succeeded(done)
    assert done.stderr.index("licence CC BY 2.0") < done.stderr.index("is complete")
    assert f"sha256: {sha256(opus.archive).hexdigest()}" in done.stderr
    pairs = list(load_corpus(source, "de", "en", Path("cache")))
    assert pairs == [(de, en) for en, de in load_pairs("test")[:200]]
    assert_user_error(tmt("init", "--opus", "de-en", "--corpora", "T,No", "--force"), "no corpus No")


def source(opus: Opus, **keys: Any) -> Source:
    return Source(table=("data/T.zip",), url=f"{opus.url}/T.zip", **keys)


def test_an_interrupted_download_is_resumed(opus: Opus) -> None:
    opus.broken_after = 1000
    with pytest.raises(UserError, match=r"1,000 of [\d,]+ bytes(.|\n)*save it as data/T.zip"):
        fetch_sources([source(opus)])
    assert not Path("data/T.zip").exists()
    fetch_sources([source(opus)])
    assert opus.ranges == [None, "bytes=1000-"]
    assert Path("data/T.zip").read_bytes() == opus.archive
    fetch_sources([source(opus)])  # is there already
    assert len(opus.ranges) == 2
    assert [path.name for path in Path("data").iterdir()] == ["T.zip"]


def test_a_part_of_an_archive_of_unstated_size_is_not_complete(opus: Opus) -> None:
    opus.broken_after, opus.states_length, opus.tag = 1000, False, ""
    with pytest.raises(UserError, match=r"the connection ended"):
        fetch_sources([source(opus)])
    fetch_sources([source(opus)])
    assert Path("data/T.zip").read_bytes() == opus.archive


def test_a_part_of_another_version_is_not_resumed(opus: Opus) -> None:
    opus.broken_after = 1000
    with pytest.raises(UserError):
        fetch_sources([source(opus)])
    opus.archive = opus.archive[::-1]
    opus.tag = md5(opus.archive).hexdigest()
    fetch_sources([source(opus)])
    assert Path("data/T.zip").read_bytes() == opus.archive


def test_wrong_checksums_are_refused(opus: Opus) -> None:
    opus.tag = md5(b"other").hexdigest()
    with pytest.raises(UserError, match="checksum"):
        fetch_sources([source(opus)])
    assert not Path("data/T.zip").exists()
    opus.tag = "no-md5"
    with pytest.raises(UserError, match=r"data/T.zip: has the SHA-256"):
        fetch_sources([source(opus, sha256="0" * 64)])
    fetch_sources([source(opus, sha256=sha256(opus.archive).hexdigest())])


def test_without_a_network_the_message_says_what_to_do_by_hand(
    tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMT_OPUS_API", "http://127.0.0.1:9/api")
    monkeypatch.chdir(tmp_path)
    assert_user_error(tmt("init", "--opus", "de-en", "--corpora", "T"), "127.0.0.1:9", "tmt init T.zip")
    with pytest.raises(UserError, match=re.escape("save it as T.zip")):
        fetch_sources([Source(table=("T.zip",), url="http://127.0.0.1:9/T.zip")])
    assert not list(tmp_path.iterdir())
