"""Compressed text is recognised by its first bytes, and damaged or foreign files are refused with file and line."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from backports import zstd

from transformer_mt.data.data_config import Source
from transformer_mt.data.sources import load_corpus
from transformer_mt.data.text_files import read_lines
from transformer_mt.errors import UserError

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd.compress,
}
LINES = [f"line {number * number} ä" for number in range(5000)]
TEXT = "".join(f"{line}\n" for line in LINES).encode()


def error_of(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        list(read_lines(path))
    return str(caught.value)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_text_is_read_whatever_its_name(suffix: str, tmp_path: Path) -> None:
    data = COMPRESS[suffix](TEXT)
    for name in (f"a{suffix}", "a.en", "a.gz"):
        (tmp_path / name).write_bytes(data)
        assert list(read_lines(tmp_path / name)) == LINES
    (tmp_path / "two").write_bytes(data + COMPRESS[suffix](b"end"))  # as parallel compressors write it
    assert list(read_lines(tmp_path / "two")) == [*LINES, "end"]
    (tmp_path / "twice.gz").write_bytes(gzip.compress(data))
    assert error_of(tmp_path / "twice.gz").startswith(f"{tmp_path / 'twice.gz'}: is compressed twice")
    (tmp_path / f"plain{suffix}").write_bytes(TEXT)
    assert list(read_lines(tmp_path / f"plain{suffix}")) == LINES
    (tmp_path / "a.tsv").write_bytes(COMPRESS[suffix](b"en\tde\n1\tx\n"))
    (tmp_path / f"b.tsv{suffix}").write_bytes(COMPRESS[suffix](b"en\tde\n2\ty\n"))
    tables = Source(table=(str(tmp_path / "a.tsv"), str(tmp_path / f"b.tsv{suffix}")))
    assert list(load_corpus(tables, "en", "de", tmp_path / "cache")) == [("1", "x"), ("2", "y")]


def test_frames_that_hold_no_text_are_skipped(tmp_path: Path) -> None:
    frame = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    (tmp_path / "a").write_bytes(frame + zstd.compress(TEXT))
    assert list(read_lines(tmp_path / "a")) == LINES


@pytest.mark.parametrize("suffix", COMPRESS)
def test_damaged_compressed_text_is_refused_with_its_line(suffix: str, tmp_path: Path) -> None:
    whole = COMPRESS[suffix](TEXT)
    path = tmp_path / f"a{suffix}"
    for damaged in (whole[:-2000], whole[:10], whole[:2000] + bytes(100) + whole[2100:], whole[:-6] + b"\0" * 6):
        path.write_bytes(damaged)
        message = error_of(path)
        assert message.startswith(f"{path}:")
        assert int(message.removeprefix(f"{path}:").partition(":")[0]) <= len(LINES) + 1


@pytest.mark.parametrize(("n_lines", "compress"), [(10, bytes), (7900, bytes), (7900, gzip.compress)])
def test_a_zero_byte_is_refused_wherever_it_is(
    n_lines: int, compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "a.en"
    path.write_bytes(compress(b"a line\n" * n_lines + b"a\0b\n" + b"a line\n" * 9))
    assert error_of(path).startswith(f"{path}:{n_lines + 1}: holds a zero byte (position 2)")
    assert list(read_lines(path, "replace"))[n_lines] == "a\ufffdb"


def test_zero_bytes_alone_are_no_utf16(tmp_path: Path) -> None:
    for line in (b"\0", b"\0\0\0", b"\0" * 9, b"ab\0\0\0\0"):
        (tmp_path / "a").write_bytes(line + b"\n")
        assert ":1: holds a zero byte" in error_of(tmp_path / "a")


@pytest.mark.parametrize(
    ("text", "encodings", "advice"),
    [
        ("Größe für mich", ("cp1252", "latin-1"), "iconv -f cp1252 -t UTF-8 "),
        ("¿Qué pasó con el niño?", ("cp1252", "latin-1"), "iconv -f cp1252 -t UTF-8 "),
        ("Русский текст", ("cp1251", "koi8-r", "iso-8859-5"), "iconv -f ENCODING -t UTF-8 "),
        ("老狗喜欢大树。", ("gb18030", "big5hkscs"), "iconv -f ENCODING -t UTF-8 "),
        ("年老いた犬", ("shift_jis", "euc-jp"), "iconv -f ENCODING -t UTF-8 "),
        ("늙은 개", ("euc-kr",), "iconv -f ENCODING -t UTF-8 "),
    ],
)
def test_advice_for_an_old_encoding_fits_the_text(
    text: str, encodings: Sequence[str], advice: str, tmp_path: Path
) -> None:
    for encoding in encodings:
        (tmp_path / "a").write_bytes(text.encode(encoding, "ignore") + b"\n")
        assert advice in error_of(tmp_path / "a")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_utf16_is_named(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a b.en"
    path.write_bytes("two words\nand more\n".encode(encoding))
    name = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    assert error_of(path).startswith(f"{path}:1: is text in {name}; ")
    assert f"iconv -f {name} -t UTF-8 " in error_of(path)


def test_the_old_format_of_xz_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.lzma").write_bytes(lzma.compress(TEXT, lzma.FORMAT_ALONE))
    assert list(read_lines(tmp_path / "a.lzma")) == LINES


@pytest.mark.parametrize(
    "head",
    [
        b"PK\x03\x04",
        b"%PDF-1.7",
    ],
)
def test_other_kinds_of_files_are_named(head: bytes, tmp_path: Path) -> None:
    content = head + b"\x14\n\0\0\xff"
    for data in (content, gzip.compress(content)):
        (tmp_path / "a").write_bytes(data)
        assert error_of(tmp_path / "a").startswith(f"{tmp_path / 'a'}: is ")
        assert "extract its text" in error_of(tmp_path / "a")
