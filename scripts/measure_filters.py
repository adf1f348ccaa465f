"""Measure the filters of data.filters on text of several scripts: removed pairs, recall, pairs per second.

The corpora are Multi30k (English with German and Czech), and the messages of the programs that are installed here
(gettext catalogues, English with Russian and Chinese), which are full of names, commands and placeholders.
"""

from __future__ import annotations

import argparse
import gettext
import random
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter

from transformer_mt.data.corpus import PairExample, ParallelCorpus
from transformer_mt.data.data_config import Source
from transformer_mt.data.sources import load_corpus
from transformer_mt.data.stages import IN_PROCESS_RUNNER
from transformer_mt.data.text_files import Pair
from transformer_mt.tools.quality.filter_base import Block, FilterContext
from transformer_mt.tools.quality.filter_pipeline import MAX_EXAMPLES, Observer, PairSample, ShardFilters, find_pairs
from transformer_mt.tools.quality.quality_config import FILTERS, FilterList

CATALOGUES = {"ru": "ru", "zh": "zh_CN"}  # language -> folder in /usr/share/locale
FILTER_NAMES = [name for name in FILTERS if name not in ("overlap", "regex", "column")]
N_CLEAN, N_PLANTED = 5000, 200
OTHER_SCRIPT = {"ru": "两个男人在街上安静地交谈", "other": "Двое мужчин тихо беседуют на улице"}


def read_multi30k(folder: Path, language: str) -> list[Pair]:
    """Return the training pairs of Multi30k."""
    src, tgt = ((folder / f"train.{code}").read_text(encoding="utf-8").split("\n") for code in ("en", language))
    return [*zip(src, tgt, strict=True)][:-1]


def read_messages(folder: str) -> list[Pair]:
    """Return the messages of one line of the installed programs, with their translations."""
    messages: dict[str, str] = {}
    for path in sorted(Path("/usr/share/locale", folder, "LC_MESSAGES").glob("*.mo")):
        if path.name.startswith("iso_"):  # names of countries and languages
            continue
        with path.open("rb") as file:
            catalogue = cast(Mapping[object, str], vars(gettext.GNUTranslations(file))["_catalog"])
        for message, translation in catalogue.items():
            if isinstance(message, str) and "\x04" not in message:
                messages.setdefault(message.strip("\n"), translation.strip("\n"))
    return [pair for pair in messages.items() if "\n" not in "".join(pair)]


def plant_bad_pairs(pairs: Sequence[Pair], language: str, foreign: Sequence[str]) -> dict[str, list[Pair]]:
    """Return damaged pairs for each filter. `foreign` has sentences of a third language."""
    sentences = [pair for pair in pairs if len(pair[0].split()) >= 6 and pair[1] and not re.search(r"%|--|\[", pair[0])]
    chosen = random.Random(1).sample(sentences, N_PLANTED)
    script = OTHER_SCRIPT.get(language, OTHER_SCRIPT["other"])
    other = [*zip(chosen, foreign, strict=False)]
    return {
        "length": [("", tgt) for _, tgt in chosen] + [(f"{src} " * 60, tgt) for src, tgt in chosen],
        "ratio": [(src, f"{tgt} " * 6) for src, tgt in chosen] + [(src, tgt[: len(tgt) // 6]) for src, tgt in chosen],
        "language": [(src, text) for (src, _), text in other] + [(text, tgt) for (_, tgt), text in other],
        "script": [(src, script) for src, _ in chosen] + [(OTHER_SCRIPT["other"], tgt) for _, tgt in chosen],
        "copy": [(src, src) for src, _ in chosen] + [(tgt, tgt) for _, tgt in chosen],
        "duplicate": [*pairs[:N_PLANTED]],
        "numbers": [(f"{src} in 1987", f"{tgt} 1978") for src, tgt in chosen]
        + [(f"{src} 4711", tgt) for src, tgt in chosen],
        "urls": [(f"{src} www.example.org", tgt) for src, tgt in chosen]
        + [(src, f"{tgt} me@example.org") for src, tgt in chosen],
        "repetition": [(src, " ".join(tgt.split()[:2] * 8)) for src, tgt in chosen if len(tgt.split()) > 1],
    }


def store(pairs: Sequence[Pair], language: str, folder: Path) -> ParallelCorpus:
    """Write text files, and load them as a corpus."""
    for name, column in zip(("src", "tgt"), zip(*pairs, strict=True), strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in column), encoding="utf-8")
    source = Source(src=(str(folder / "src"),), tgt=(str(folder / "tgt"),))
    return load_corpus(source, "en", language, folder / "cache")


def apply(corpus: ParallelCorpus, filter_: str, language: str, folder: Path) -> tuple[list[int], PairSample, float]:
    """Return the rows that a filter affects, examples, and the seconds without those of reading."""
    rows: list[int] = []
    sample = PairSample(MAX_EXAMPLES)

    def observe(number: int, block: Block, reasons: Mapping[int, str]) -> None:
        rows.extend(block.rows[[*reasons]].tolist())
        sample.add(block, reasons)

    def ignore(*_: object) -> None:
        pass

    def seconds(names: list[str], observe: Observer = ignore) -> float:
        filters = TypeAdapter(FilterList).validate_python(names)
        start = time.perf_counter()
        context = FilterContext(corpus, ("en", language), {})
        cache = Path(tempfile.mkdtemp(dir=folder))  # so that nothing is found there
        found = find_pairs(corpus, context, filters, cache, IN_PROCESS_RUNNER)
        for shard in range(len(corpus.shards)):
            for _ in ShardFilters(corpus, context, filters, found).apply(shard, observe):
                pass
        return time.perf_counter() - start

    seconds([filter_])  # loads libraries
    reading = seconds([])
    return rows, sample, seconds([filter_], observe) - reading


def measure(
    name: str, pairs: Sequence[Pair], language: str, foreign: Sequence[str], filters: Sequence[str]
) -> Iterator[tuple[str, Sequence[PairExample]]]:
    """Yield a row of the table for each filter, and examples of what it removes."""
    planted = plant_bad_pairs(pairs, language, foreign)
    for filter_ in filters:
        with tempfile.TemporaryDirectory() as folder:
            corpus = store(pairs, language, Path(folder))
            rows, sample, seconds = apply(corpus, filter_, language, Path(folder))
        found = ""
        if filter_ in planted:
            clean = [*pairs[:N_CLEAN]]
            with tempfile.TemporaryDirectory() as folder:
                damaged = store([*clean, *planted[filter_]], language, Path(folder))
                hits = sum(row >= len(clean) for row in apply(damaged, filter_, language, Path(folder))[0])
            found = f"{hits / len(planted[filter_]):.1%}"
        speed = f"{len(pairs) / seconds:,.0f}" if seconds > 0 else ""
        yield f"| {name} | `{filter_}` | {len(rows):,} of {len(pairs):,} | {found} | {speed} |", sample.examples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.en, train.de and train.cs")
    parser.add_argument("--examples", type=Path, help="file for the examples of removed pairs")
    help = "filters to measure (default: all)"
    parser.add_argument("--filters", nargs="+", choices=FILTER_NAMES, default=FILTER_NAMES, help=help)
    args = parser.parse_args()
    corpora = {f"en-{language}": (read_multi30k(args.data, language), language) for language in ("de", "cs")}
    corpora |= {f"en-{language}": (read_messages(folder), language) for language, folder in CATALOGUES.items()}
    print("| corpus | filter | removed or changed | planted pairs found | pairs/s |\n|---|---|---|---|---|")
    for name, (pairs, language) in corpora.items():
        foreign = read_multi30k(args.data, "cs" if language == "de" else "de")[::100]
        sentences = [tgt for _, tgt in foreign]
        for row, examples in measure(name, pairs, language, sentences, args.filters) if pairs else ():
            print(row, flush=True)
            if args.examples:
                with args.examples.open("a", encoding="utf-8") as file:
                    file.write(f"{row}\n" + "".join(f"{' | '.join(example)}\n" for example in examples))


if __name__ == "__main__":
    main()
