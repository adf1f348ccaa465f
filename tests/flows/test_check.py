"""Faults that are planted into a correct corpus, one line each, and what `tmt check` finds."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from transformer_mt.data.sources import load_pairs
from transformer_mt.data.stages import LocalRunner
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.flows.check import check_corpus, is_repairable
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.prepare import load_filtered
from transformer_mt.system.log import Severity
from transformer_mt.tools.quality.checks import CorpusReport

MULTI30K = Path(__file__).parents[2].parent / "shared" / "data" / "multi30k"
FRENCH = "Une femme avec un grand chapeau regarde tranquillement les bateaux qui rentrent au port."
RUSSIAN = "Старый врач не открыл окно, потому что на улице было очень холодно."
GERMAN = "Zahlreiche Zugvögel verlassen spätestens Anfang September nördliche Brutgebiete."

Pair = tuple[str, str]
Corpus = tuple[list[Pair], list[Pair]]

LINES: dict[str, Callable[[str, str], Pair]] = {
    "content: empty": lambda src, tgt: ("", tgt),
    "content: unrelated": lambda src, tgt: (src, GERMAN),
    "content: language": lambda src, tgt: (FRENCH, tgt),
    "content: script": lambda src, tgt: (src, RUSSIAN),
    "content: copy": lambda src, tgt: (src, src),
    "content: length": lambda src, tgt: (f"{src} " * 60, f"{tgt} " * 60),
    "content: ratio": lambda src, tgt: (src, f"{tgt} {tgt} {tgt} {tgt} {tgt}"),
    "content: numbers": lambda src, tgt: (f"{src} It was 1984.", f"{tgt} Es war 1948."),
    "content: numbers (dates)": lambda src, tgt: (f"{src} (12/05/2024)", f"{tgt} (17.06.2023)"),
    "content: urls": lambda src, tgt: (f"{src} See https://example.org/a.", tgt),
    "content: urls (e-mail)": lambda src, tgt: (src, f"{tgt} Schreiben Sie an post@example.org."),
    "content: repetition": lambda src, tgt: (src, "der Hund der Hund der Hund der Hund der Hund der Hund"),
    "content: mojibake": lambda src, tgt: (src, "Die MÃ¤nner trÃ¤gt grÃ¼ne StrÃ¼mpfe."),
    "content: stray characters (control)": lambda src, tgt: (f"\x07{src}", tgt),
    "content: stray characters (invisible)": lambda src, tgt: (src, f"{tgt[:3]}\u200b{tgt[3:]}"),
    "content: stray characters (NFD)": lambda src, tgt: (f"{src} Cafe\u0301", f"{tgt} Café"),
    "content: stray characters (line separator)": lambda src, tgt: (f"{src}\u2028{src}", f"{tgt} {tgt}"),
    "content: stray characters (carriage return)": lambda src, tgt: (src, f"{tgt[:5]}\r{tgt[5:]}"),
    "content: html": lambda src, tgt: (f"<b>{src}</b>", tgt),
    "content: html (attribute)": lambda src, tgt: (f'<seg id="1">{src}</seg>', tgt),
    "content: HTML entities": lambda src, tgt: (src, f"{tgt} &nbsp;"),
    "content: replacement characters": lambda src, tgt: (src, tgt.replace(tgt[5], "\ufffd")),
}


def plant(pairs: list[Pair], held_out: list[Pair]) -> dict[str, int]:
    """Change one line for each fault. Return the line numbers, counted from 1."""
    lines = dict(zip(LINES, range(50, 2000, 37), strict=False))
    for name, line in lines.items():
        pairs[line - 1] = LINES[name](*pairs[line - 1])
    longest = max((src for src, _ in held_out), key=len)
    others: dict[str, Callable[[int], Pair]] = {
        "duplicates: pair": lambda line: pairs[line - 30],
        "duplicates: near pair": lambda line: (misspell(pairs[line - 30][0]), misspell(pairs[line - 30][1])),
        "duplicates: source": lambda line: (pairs[line - 30][0], pairs[line - 1][1]),
        "duplicates: target": lambda line: (pairs[line - 1][0], pairs[line - 30][1]),
        "overlap: held-out text": lambda line: held_out[3],
        "overlap: held-out text (case)": lambda line: (held_out[5][0].upper(), held_out[5][1].replace(".", " !")),
        "overlap: near held-out text": lambda line: (misspell(longest), pairs[line - 1][1]),
    }
    for line, (name, make) in zip(range(1000, 2000, 41), others.items(), strict=False):
        pairs[line - 1], lines[name] = make(line), line
    return lines


def misspell(text: str) -> str:
    """Double the last letter."""
    return f"{text[:-1]}{text[-2:]}"


def write(folder: Path, name: str, pairs: Sequence[Pair]) -> str:
    """Write two text files, and return the source that names them."""
    for side, language in enumerate(("en", "de")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"{name}.{language}").write_bytes(text.encode())
    return f"{{src: {folder}/{name}.en, tgt: {folder}/{name}.de}}"


def load(*overrides: str) -> Config:
    return configuration.load(configuration.find_preset("quickstart"), overrides)


def check(folder: Path, pairs: Sequence[Pair], held_out: Sequence[Pair], workers: int = 1) -> CorpusReport:
    train, validation = write(folder, "train", pairs), write(folder, "valid", held_out)
    config = load(
        f"data.train={train}", f"data.validation={validation}", "data.test={}", f"data.cache_dir={folder}/cache"
    )
    return check_corpus(config, LocalRunner(workers))


def found_lines(report: CorpusReport, name: str) -> list[int]:
    """Return the lines of the examples of a finding."""
    examples = [example for f in report.findings if f"{f.group}: {f.name}" == name for example in f.examples]
    return [int(example.location.rpartition(":")[2]) for example in examples]


@pytest.fixture(scope="module")
def builtin() -> Corpus:
    """Return 2,000 different pairs, and held-out ones, of the built-in corpus."""
    return [*dict.fromkeys(load_pairs("train"))][:2000], load_pairs("validation")[:50]


@pytest.fixture(scope="module")
def multi30k() -> Corpus:
    """Return the training and validation pairs of Multi30k, or skip the test."""
    if not MULTI30K.is_dir():
        pytest.skip("needs Multi30k")

    def read(name: str) -> list[Pair]:
        texts = ((MULTI30K / f"{name}.{language}").read_text(encoding="utf-8") for language in ("en", "de"))
        return list(zip(*(text.splitlines() for text in texts), strict=True))

    return read("train"), read("val")


def assert_all_are_found(corpus: Corpus, folder: Path, *, except_for: str = "") -> None:
    pairs, held_out = [*corpus[0]], corpus[1]
    lines = plant(pairs, held_out)
    lines.pop(except_for, None)
    report = check(folder, pairs, held_out)
    missed = [name for name, line in lines.items() if line not in found_lines(report, name.partition(" (")[0])]
    assert not missed, f"{len(missed)} of {len(lines)} faults were missed"


def test_each_planted_fault_is_found_with_its_line(builtin: Corpus, tmp_path: Path) -> None:
    assert_all_are_found(builtin, tmp_path)


@pytest.mark.slow
def test_most_unrelated_pairs_are_found_in_real_text(multi30k: Corpus, tmp_path: Path) -> None:
    def count(pairs: Sequence[Pair]) -> int:
        report = check(tmp_path, pairs, multi30k[1])
        return next(finding.count for finding in report.findings if finding.name == "unrelated")

    pairs = [*multi30k[0]]
    n_clean = count(pairs)
    assert n_clean < 0.005 * len(pairs)
    rows = range(0, len(pairs), 100)  # each gets the target of the pair 50 lines before
    for row in rows:
        pairs[row] = (pairs[row][0], multi30k[0][row - 50][1])
    assert count(pairs) - n_clean > 0.9 * len(rows)


def test_a_correct_corpus_has_no_warnings(builtin: Corpus, tmp_path: Path) -> None:
    report = check(tmp_path, *builtin)
    assert [finding for finding in report.findings if finding.severity > Severity.OK] == []


@pytest.mark.slow
def test_several_processes_find_the_same(builtin: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_mt.data.corpus.SHARD_PAIRS", 10_000)
    pairs, held_out = [*builtin[0]] * 12, builtin[1]
    plant(pairs, held_out)
    reports: list[CorpusReport] = []
    for workers in (1, 2):
        reports.append(check(tmp_path, pairs, held_out, workers))
        shutil.rmtree(tmp_path / "cache")
    assert reports[0] == reports[1]


def test_shifted_and_shuffled_lines_are_errors(builtin: Corpus, tmp_path: Path) -> None:
    src, tgt = map(list, zip(*builtin[0], strict=True))
    middle = tgt[1500:1700]
    random.Random(1).shuffle(middle)
    tgt = [*tgt[:500], "Die Katze schläft.", *tgt[500:1200], *tgt[1201:1500], *middle, *tgt[1700:]]
    report = check(tmp_path, list(zip(src, tgt, strict=True)), builtin[1])
    shifted, unaligned = (finding for finding in report.findings if finding.severity == Severity.ERROR)
    assert f"train, {tmp_path}/train.en:501 to" in shifted.message and "target line N+1" in shifted.message
    assert "delete 1 line of the target, or insert 1 line into the source" in shifted.remedy
    assert f"{tmp_path}/train.en:1501 to {tmp_path}/train.en:1700" in unaligned.message


def test_unequal_line_counts_name_the_first_shifted_line(builtin: Corpus, tmp_path: Path) -> None:
    config = load(f"data.train={write(tmp_path, 'train', builtin[0])}", f"data.cache_dir={tmp_path}/cache")
    target = tmp_path / "train.de"
    lines = target.read_text(encoding="utf-8").split("\n")
    target.write_text("\n".join([*lines[:1200], *lines[1201:]]), encoding="utf-8")
    counts, shifted = check_corpus(config).findings
    assert f"train.en has 2,000 lines, {target} has 1,999" in counts.message
    assert "on: source line N corresponds to target line N-1" in shifted.message
    assert "train.en:1201 " in shifted.message or "train.en:1202 " in shifted.message  # source 1201 has lost its target


@pytest.mark.parametrize("where", ["train", "validation"])
@pytest.mark.parametrize("change", ["shift", "blank lines", "missing end"])
def test_only_faults_of_training_pairs_are_repairable(where: str, change: str, builtin: Corpus, tmp_path: Path) -> None:
    pairs = builtin[0][:400]
    sources = {name: write(tmp_path, name, part) for name, part in (("train", pairs), ("validation", pairs[200:]))}
    target = tmp_path / f"{where}.de"
    lines = target.read_text(encoding="utf-8").splitlines()
    changed = {
        "shift": [*lines[:50], "Etwas ganz anderes.", *lines[50:-1]],
        "blank lines": [*lines, "", " "],
        "missing end": lines[:-2],
    }
    target.write_text("".join(f"{line}\n" for line in changed[change]), encoding="utf-8")
    settings = (f"data.{name}={source}" for name, source in sources.items())
    config = load(*settings, "data.test={}", f"data.cache_dir={tmp_path}/cache")
    report = check_corpus(config)
    found = [finding for finding in report.findings if finding.group == "alignment"]
    assert found and all(finding.remedy and finding.message.startswith(where) for finding in found)
    assert any("delete the blank lines" in finding.remedy for finding in found) == (change == "blank lines")
    misaligned = replace(report, findings=found)  # the training pairs are also held-out text
    assert is_repairable(config, misaligned) == (where == "train")


def test_a_file_that_cannot_be_read_is_named_with_its_key(builtin: Corpus, tmp_path: Path) -> None:
    settings = f"data.train={write(tmp_path, 'train', builtin[0][:50])}", f"data.cache_dir={tmp_path}/cache"
    (tmp_path / "train.de").write_text("eins\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"data\.validation: .*gone\.de: no such file"):
        train = "data.train={builtin: quickstart, split: test}"
        source = f"{{src: {tmp_path}/train.en, tgt: {tmp_path}/gone.de}}"
        check_corpus(load(*settings, train, f"data.validation={source}", "data.test={}"))
    bad = [*(tmp_path / "train.en").read_bytes().splitlines(keepends=True)]
    bad[4] = b"caf\xe9\n"
    (tmp_path / "train.en").write_bytes(b"".join(bad))
    with pytest.raises(UserError, match=r"train\.en:5: not UTF-8"):
        check_corpus(load(*settings))
    (first, *_) = check_corpus(load(*settings, "data.max_bad_rows=10")).findings
    assert "train.en has 50 lines" in first.message and "train.de has 1" in first.message


@pytest.mark.parametrize("n_common", [0, 30])
def test_pairs_of_several_sources_are_duplicates(n_common: int, builtin: Corpus, tmp_path: Path) -> None:
    """Each source has a duplicate of its own."""
    pairs = builtin[0]
    parts = {"a": [*pairs[:100], pairs[0]], "b": [*pairs[100 - n_common : 200], pairs[199]]}
    items = [f"{{name: {name}, {write(tmp_path, name, part).removeprefix('{')}" for name, part in parts.items()]
    back = write(tmp_path, "back", [(tgt, src) for src, tgt in pairs[:50]]).removeprefix("{")
    items.append(f"{{name: back, src_lang: de, tgt_lang: en, {back}")
    settings = f"data.train=[{', '.join(items)}]", "data.test={}", f"data.cache_dir={tmp_path}/cache"
    findings = [found for found in check_corpus(load(*settings)).findings if found.group == "duplicates"]
    assert [found.count for found in findings if found.name == "pair"] == [1, 1]
    found = [found for found in findings if found.name == "pair across sources"]
    assert [(each.count, each.total) for each in found] == ([(32, 282)] if n_common else [])
    if found:
        examples = {(each.location, each.reason) for each in found[0].examples}
        assert (f"{tmp_path}/b.en:1", f"repeats {tmp_path}/a.en:71") in examples
        assert found[0].severity == Severity.WARNING and found[0].remedy


def test_examples_of_duplicates_name_both_lines(
    builtin: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformer_mt.data.corpus.BLOCK_SIZE", 7)
    first, second = builtin[0][0], builtin[0][9]
    pairs = [*builtin[0][:20], second, (first[0], "etwas"), ("something", second[1]), second]
    report = check(tmp_path, pairs, builtin[1])
    reasons = {
        (finding.name, int(example.location.rpartition(":")[2])): example.reason.replace(f"{tmp_path}/", "")
        for finding in report.findings
        if finding.group == "duplicates"
        for example in finding.examples
    }
    assert reasons["pair", 21] == reasons["pair", 24] == "repeats train.en:10"
    assert reasons["source", 22] == "repeats the source of train.en:1"
    assert reasons["target", 23] == "repeats the target of train.en:10"


def test_placeholders_are_not_html_and_the_suggested_filters_remove_all_html(builtin: Corpus, tmp_path: Path) -> None:
    good = [*builtin[0][:40], ("2 < 3 & 4 > 3", "2 < 3 & 4 > 3")]
    html = [("A <b>dog</b>", "Ein Hund"), ("A dog", "<BR/>Ein Hund"), ('<seg id="1">a</seg>', "b")]
    references = [("A dog", "Ein&nbsp;Hund"), ("A&#x20;b", "Tom &amp;amp; &QUOT;x&quot;")]
    pairs = [*good, *html, *references]
    placeholders = [("Hello <name>, this is &title;.", "Hallo <name>, das ist &title;.")]
    report = check(tmp_path, [*pairs, *placeholders], builtin[1])
    found = {finding.name: finding for finding in report.findings}
    assert (found["html"].count, found["HTML entities"].count) == (len(html), len(references))
    source, cache = write(tmp_path, "train", pairs), f"data.cache_dir={tmp_path}/cache"
    remedies = ", ".join(f"{{{found[name].remedy}}}" for name in ("html", "HTML entities"))
    config = load(f"data.train={source}", cache, f"data.filters=[{remedies}]")
    assert [*load_filtered(config)] == [*good, ("A dog", "Ein Hund"), ("A b", 'Tom & "x"')]


def test_equal_sides_are_no_fault_within_one_language(builtin: Corpus, tmp_path: Path) -> None:
    source = write(tmp_path, "train", [(src, src) for src, _ in builtin[0][:100]])
    languages = "data.src_lang=en", "data.tgt_lang=en-x-simple"
    config = load(
        f"data.train={source}", *languages, "data.validation=null", "data.test={}", f"data.cache_dir={tmp_path}"
    )
    assert "copy" not in {finding.name for finding in check_corpus(config).findings}


def test_lines_with_columns_of_a_table_are_found(builtin: Corpus, tmp_path: Path) -> None:
    pairs = [(f"{number}\t{src}", f"{number}\t{tgt}") for number, (src, tgt) in enumerate(builtin[0][:100])]
    report = check(tmp_path, pairs, builtin[1])
    assert found_lines(report, "content: columns")[:2] == [1, 2]
    mixed = check(tmp_path, [*pairs[:20], *builtin[0][100:200]], builtin[1])
    assert found_lines(mixed, "content: columns") == []


def test_swapped_languages_are_an_error_with_advice(builtin: Corpus, tmp_path: Path) -> None:
    report = check(tmp_path, [(tgt, src) for src, tgt in builtin[0][:400]], builtin[1])
    (finding,) = (finding for finding in report.findings if finding.name == "language")
    assert finding.severity == Severity.ERROR and "swapped?" in finding.message
    assert finding.remedy == "swap src_lang and tgt_lang, or the files"


@pytest.mark.parametrize("where", ["validation", "test"])
@pytest.mark.parametrize(
    ("change", "severity"),
    [
        (lambda src, tgt: (tgt, src), Severity.ERROR),
        (lambda src, tgt: (src, src), Severity.WARNING),
        (lambda src, tgt: (tgt, tgt), Severity.WARNING),
        (lambda src, tgt: (FRENCH, tgt), Severity.WARNING),
    ],
)
def test_held_out_text_in_other_languages_is_found(
    where: str, change: Callable[[str, str], Pair], severity: Severity, builtin: Corpus, tmp_path: Path
) -> None:
    held_out = write(tmp_path, "held", [change(*pair) for pair in builtin[1]])
    train, sets = write(tmp_path, "train", builtin[0][:300]), {"validation": "null", "test": "{}"}
    sets[where] = held_out if where == "validation" else f"{{mine: {held_out}}}"
    config = load(f"data.train={train}", *(f"data.{key}={value}" for key, value in sets.items()))
    findings = [found for found in check_corpus(config).findings if found.name == "held-out language"]
    assert [found.severity for found in findings] == [severity]
    assert findings[0].message.startswith("validation: " if where == "validation" else "mine: ")
    assert not check_corpus(config).has_wrong_languages  # those of the configuration are right


def test_held_out_text_whose_source_names_its_languages_is_accepted(builtin: Corpus, tmp_path: Path) -> None:
    held_out = write(tmp_path, "held", [(tgt, src) for src, tgt in builtin[1]]).removesuffix("}")
    train = write(tmp_path, "train", builtin[0][:300])
    tests = f"{{back: {held_out}, src_lang: de, tgt_lang: en}}}}"
    config = load(f"data.train={train}", "data.validation=null", f"data.test={tests}")
    assert not any(found.name == "held-out language" for found in check_corpus(config).findings)


def test_the_other_side_of_an_unknown_language_is_checked(builtin: Corpus, tmp_path: Path) -> None:
    pairs = [*builtin[0][:40], (FRENCH, "x"), (RUSSIAN, "x")]
    train = write(tmp_path, "train", pairs)
    config = load(
        f"data.train={train}", "data.validation=null", "data.test={}", "data.tgt_lang=qaa", f"data.cache_dir={tmp_path}"
    )
    report = check_corpus(config)
    assert 41 in found_lines(report, "content: language")
    assert found_lines(report, "content: script") == [42]
