"""The configuration file that `tmt init` writes: checks of the files, languages, chosen settings, YAML text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple, cast

from transformer_mt.config.section import check_folder_name, expand_path, has_lone_surrogate
from transformer_mt.config.yaml_files import render_value
from transformer_mt.data.characters import has_letters
from transformer_mt.data.corpus import BLOCK_SIZE, log_progress
from transformer_mt.data.data_config import Source, primary_language
from transformer_mt.data.sources import BadRows, check_is_text, read_source
from transformer_mt.data.tables import is_table
from transformer_mt.data.text_files import (
    DELETE_BLANK_LINES,
    SentencePair,
    UnequalLengthError,
    advise_check,
    check_is_regular,
    read_lines,
)
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import BLEU_TOKENIZERS
from transformer_mt.flows.configuration import find_preset, load
from transformer_mt.flows.line_io import check_output
from transformer_mt.flows.table_columns import TableColumns, choose_columns
from transformer_mt.system.files import write_text
from transformer_mt.tools.languages.detection import (
    LanguageDetector,
    describe_other_language,
    describe_swapped_sides,
    detect_language,
)
from transformer_mt.tools.languages.scripts import UNSPACED_SCRIPTS, find_script
from transformer_mt.tools.quality.checks import PREPROCESSING_CHECKS, FunctionFilter
from transformer_mt.tools.quality.signals import is_lower_case


@dataclass(frozen=True, kw_only=True)
class SizeSettings:
    """Settings for corpora of up to `max_pairs` sentence pairs."""

    max_pairs: int | None  # None: no limit
    vocab_size: int
    sampling: float = 0.0  # rate of BPE-dropout
    d_model: int
    d_ff: int
    n_heads: int = 4
    n_layers: int = 4  # of the encoder, and of the decoder
    positions: str = "rotary"
    dropout: float
    word_dropout: float = 0.0
    tokens: int = 4096  # per batch
    accumulate: int = 1  # batches per step
    optimizer: str = "adam"
    schedule: str = "wsd"
    warmup_steps: int
    peak: float
    max_steps: int
    validate_every: int
    validation_size: int = 1000
    evidence: str


FEW_PAIRS = SizeSettings(
    max_pairs=6000,
    vocab_size=3000,
    sampling=0.1,
    d_model=128,
    d_ff=256,
    dropout=0.3,
    tokens=2048,
    optimizer="muon",
    warmup_steps=400,
    peak=8e-3,
    max_steps=3000,
    validate_every=250,
    evidence="measured with 1,000 and 3,000 pairs (configs/low_resource.yaml)",
)
SIZE_SETTINGS = (
    FEW_PAIRS,
    replace(
        FEW_PAIRS,
        max_pairs=15_000,
        sampling=0.0,
        word_dropout=0.1,
        max_steps=2000,
        evidence="measured with 10,000 pairs",
    ),
    replace(
        FEW_PAIRS,
        max_pairs=60_000,
        vocab_size=6000,
        sampling=0.0,
        d_model=192,
        d_ff=384,
        n_heads=6,
        dropout=0.2,
        tokens=4096,
        validate_every=500,
        evidence="measured with 29,000 pairs (configs/multi30k_en_de.yaml)",
    ),
    SizeSettings(
        max_pairs=500_000,
        vocab_size=10_000,
        d_model=256,
        d_ff=1024,
        dropout=0.2,
        warmup_steps=1000,
        peak=2e-3,
        max_steps=30_000,
        validate_every=1000,
        evidence="not measured; between the measured ones and those of the literature",
    ),
    SizeSettings(
        max_pairs=None,
        vocab_size=32_000,
        d_model=512,
        d_ff=2048,
        n_heads=8,
        n_layers=6,
        positions="sinusoidal",
        dropout=0.1,
        accumulate=6,
        schedule="inverse_sqrt",
        warmup_steps=4000,
        peak=7e-4,
        max_steps=100_000,
        validate_every=2000,
        validation_size=2000,
        evidence="not measured; the base model of Vaswani et al. 2017, for a GPU",
    ),
)
"""Settings in the order of corpus size. The first entry that admits the corpus is chosen."""

ROOM_FOR_ALPHABET = 500  # characters that a vocabulary holds without being larger
BLEU_NOTE = "BLEU: measured once on Multi30k (lower-cased Moses tokens), not on your text."
"""Conditions of the differences in BLEU that reasons state; docs/results has all figures."""

MIN_ONE_CASE = 0.95  # share of the texts in small letters, or in capitals, from which settings of letter case change
MIN_PAIRS_TO_SPLIT = 10  # the fewest pairs that validation pairs can be split off from


class Setting(NamedTuple):
    """A chosen setting: its section and key, its value as in the YAML file, and the reason."""

    section: str
    key: str  # empty for an item of a list
    value: Any
    reason: str
    children: Sequence[Setting] = ()  # in place of a value: settings below the key, each on a line


MODIFIERS = (
    ("lower_source", 0.05, "typed in small letters: a man in a red shirt"),
    ("drop_end_punctuation", 0.1, "headings and menus have no full stop"),
    ("typos", 0.1, "swapped, missing, double and wrong letters"),
)
"""Probability of each modifier, and the text that it is for (docs/results.md). Case is restored in the translation."""


def find_size_settings(n_pairs: int) -> SizeSettings:
    """Return the settings for a number of sentence pairs."""
    return next(size for size in SIZE_SETTINGS if size.max_pairs is None or n_pairs <= size.max_pairs)


def choose_settings(statistics: CorpusStatistics, tgt_lang: str) -> Iterator[Setting]:
    """Yield all settings that differ from the defaults or depend on the corpus, section by section."""
    size = find_size_settings(statistics.n_pairs)
    n_held_out = min(size.validation_size, statistics.n_pairs // 10)
    yield Setting("data", "validation_size", n_held_out, f"held out: a tenth, at most {size.validation_size:,} pairs")
    has_case = any(map(str.isupper, "".join(statistics.src.sample)))
    modifiers = [Setting("modifiers", *each) for each in MODIFIERS if has_case or each[0] != "lower_source"]
    yield Setting("data", "modifiers", None, "share of the pairs that are changed at random", modifiers)
    n_characters = statistics.src.n_characters + statistics.tgt.n_characters
    if n_characters > ROOM_FOR_ALPHABET:
        n_pieces = size.vocab_size + -(-n_characters // 1000) * 1000
        reason = f"{size.vocab_size:,} subwords, and room for {n_characters:,} characters"
        yield Setting("tokenizer", "vocab_size", n_pieces, reason)
        yield Setting("tokenizer", "min_frequency", 1, "all characters, also those that occur once")
    else:
        yield Setting("tokenizer", "vocab_size", size.vocab_size, "subwords of both languages; more for more pairs")
    samples = statistics.src.sample, statistics.tgt.sample
    if all(sum(map(is_lower_case, sample)) > MIN_ONE_CASE * len(sample) for sample in samples):
        yield Setting("tokenizer", "normalization", ["lowercase"], "no capitals here; users may type some")
    if size.sampling:
        yield Setting("tokenizer", "sampling", size.sampling, "BPE-dropout: new subwords in each epoch")
    layers = {"n_layers": size.n_layers}
    yield Setting("model", "d_model", size.d_model, "width; more for more pairs")
    yield Setting("model", "d_ff", size.d_ff, f"feed-forward width, {size.d_ff // size.d_model} times d_model")
    yield Setting("model", "n_heads", size.n_heads, f"attention heads of width {size.d_model // size.n_heads}")
    yield Setting("model", "encoder", layers, "depth of the encoder")
    yield Setting("model", "decoder", layers, "depth of the decoder")
    if size.positions == "rotary":
        yield Setting("model", "positions", "rotary", "1.5 BLEU more than sinusoidal")
    rates = {"embedding": size.dropout, "residual": size.dropout}
    if size.word_dropout:
        rates["word"] = size.word_dropout
    yield Setting("model", "dropout", rates, "against overfitting; less for more pairs")
    yield Setting("batches", "tokens", size.tokens, "target tokens of a batch, with padding")
    if size.accumulate > 1:
        reason = f"batches per step, {size.tokens * size.accumulate:,} tokens"
        yield Setting("batches", "accumulate", size.accumulate, reason)
    if size.optimizer == "muon":
        yield Setting("optimizer", "kind", "muon", "1.2 BLEU more than Adam")
    if size.schedule == "wsd":
        yield Setting("schedule", "kind", "wsd", "1.4 BLEU more than a cosine")
    yield Setting("schedule", "warmup_steps", size.warmup_steps, "steps to the highest learning rate")
    yield Setting("schedule", "peak", size.peak, "highest learning rate")
    yield Setting("train", "max_steps", size.max_steps, "`tmt plan` predicts the hours")
    yield Setting("validation", "every", size.validate_every, "steps between scores and checkpoints")
    if size.schedule == "wsd":
        yield Setting("validation", "patience", None, "no early stopping: scores rise to the end")
    if not statistics.tgt.is_spaced and primary_language(tgt_lang) not in BLEU_TOKENIZERS:  # `auto` knows the others
        yield Setting("scoring", "tokenize", "char", "the target has no spaces between words")
    if sum(map(str.isupper, statistics.src.sample)) > MIN_ONE_CASE * len(statistics.src.sample):
        yield Setting("decoding", "restore_case", False, "the sources are in capitals, as glosses are")


def _describe_preprocessing(statistics: CorpusStatistics) -> Iterator[str]:
    """Yield advice about text that is unlike what users type."""
    pairs = [*zip(statistics.src.sample, statistics.tgt.sample, strict=True)]
    for check in PREPROCESSING_CHECKS:
        find_reason = cast(FunctionFilter, check.make_filter()).reason_of
        share = sum(find_reason(*pair) is not None for pair in pairs) / len(pairs)
        if share >= check.min_share:
            yield f"{share:.1%} of the pairs {check.message}; {check.remedy}"


HEAD_LINES = 1000  # of a file without its counterpart, in which the language is detected
MAX_WIDTH = 40  # before the reasons, unless a value is longer


class InitialConfig(NamedTuple):
    """A summary of a written configuration, warnings, and advice about the corpus."""

    summary: str
    warnings: list[str]
    advice: list[str]


def write_initial_config(
    files: Sequence[Path],
    output: Path,
    *,
    force: bool = False,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    columns: Sequence[str] | None = None,
    max_bad_rows: int = 0,
    validation: Sequence[Path] = (),
    test: Sequence[Path] = (),
) -> InitialConfig:
    """Inspect a corpus and write a configuration that trains on it.

    `files` are two text files, or one table with `columns` for source and target: names, or numbers without a header.
    Up to `max_bad_rows` unreadable rows are left out. `validation` and `test` are also two files or one table, or
    empty.

    Raises:
        UserError: The files are not a parallel corpus, or the output cannot be written. Nothing is written then.
    """
    check_config_path(output, force)
    found = choose_source(files, columns, (src_lang, tgt_lang))
    if len(files) == 1:
        src_lang, tgt_lang = src_lang or found.find_language(0), tgt_lang or found.find_language(1)
    source, bad = found.source, BadRows(max_bad_rows)
    try:
        statistics = inspect_pairs(read_source(source, found.columns, bad))
    except UnequalLengthError as error:
        if not source.src or error.remedy == DELETE_BLANK_LINES:  # an archive, or nothing to repair
            raise
        raise UserError(f"{error.problem};\n{_explain_repair(source, src_lang, tgt_lang)}") from None
    bad.report()
    _check_statistics(statistics, files)
    src, tgt = _choose_languages(statistics, files, src_lang, tgt_lang)
    held_out = {
        key: choose_source(given, columns, (src, tgt))
        for key, given in (("validation", validation), ("test", test))
        if given
    }
    settings = [
        Setting("data", "src_lang", src, "detected" if src_lang is None else "given"),
        Setting("data", "tgt_lang", tgt, "detected" if tgt_lang is None else "given"),
        Setting("data", "train", _list_source_keys(source, (src, tgt)), "relative to the folder of the command"),
        *([Setting("data", "max_bad_rows", max_bad_rows, f"{bad.n_bad} are left out")] if max_bad_rows else []),
        *_list_held_out_sets(held_out, files, (src, tgt)),
        *(each for each in choose_settings(statistics, tgt) if not validation or each.key != "validation_size"),
    ]
    text = render(settings, [*_describe_corpus(statistics, src, tgt)])
    write_config(output, text)
    given = ("--src-lang", src_lang, statistics.src), ("--tgt-lang", tgt_lang, statistics.tgt)
    notes = [each.note for each in (found, *held_out.values()) if each.note]
    warnings = [*notes, *(warning for one in given for warning in _doubt_language(*one))]
    summary = f"{src} to {tgt}, {statistics.n_pairs:,} pairs"
    return InitialConfig(summary, warnings, [*_describe_preprocessing(statistics)])


def read_preset_comment(path: Path) -> list[str]:
    """Return the lines of the comment at the top of a preset. The first one is its description."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [line[1:].removeprefix(" ") for line in takewhile(lambda line: line.startswith("#"), lines)]


def write_preset(name: str, output: Path, *, force: bool) -> InitialConfig:
    """Write a configuration that ships with the program, with the settings that it inherits.

    Raises `UserError` if there is no such preset, or the output cannot be written.
    """
    path = find_preset(name)
    check_config_path(output, force)
    config = load(path)
    sections = config.model_dump(mode="json", exclude_unset=True, exclude={"name"})
    settings = [_make_setting(section, *entry) for section, entries in sections.items() for entry in entries.items()]
    src, tgt = config.data.src_lang, config.data.tgt_lang
    lines = [
        f"Preset {name}, written by `tmt init`. For your own text, change languages and files in section data:",
        f"  train: {{src: train.{src}, tgt: train.{tgt}}}",
        f"  validation: {{src: valid.{src}, tgt: valid.{tgt}}}  # null: some training pairs are held out",
        f"  test: {{test: {{src: test.{src}, tgt: test.{tgt}}}}}  # {{}}: none",
        "",
    ]
    write_config(output, render(settings, [*lines, *read_preset_comment(path)]))
    advice = f"for your own text, change the languages and files in section data of {output}"
    return InitialConfig(f"preset {name}, {src} to {tgt}", [], [advice])


def _make_setting(section: str, key: str, value: object) -> Setting:
    """Return a setting without a reason. A mapping of mappings, such as `data.test`, gets a line for each entry."""
    entries = cast(dict[str, object], value) if isinstance(value, dict) else {}
    if entries and all(isinstance(entry, dict) for entry in entries.values()):
        return Setting(section, key, None, "", [_make_setting("", *entry) for entry in entries.items()])
    return Setting(section, key, value, "")


def write_config(output: Path, text: str) -> None:
    """Write the YAML file."""
    try:
        write_text(output, text)
    except OSError as error:
        raise UserError(f"{output}: cannot be written: {error.strerror}; choose another --out") from None


# --- checks -----------------------------------------------------------------------------------------------------------


def check_config_path(output: Path, force: bool) -> None:
    """Raise `UserError` if the YAML file cannot be written, belongs to a run, or exists and `force` is false."""
    if output.suffix not in (".yaml", ".yml"):
        raise UserError(f"--out {output}: a configuration ends in .yaml")
    check_output(output, option="--out")
    if (output.exists() or output.is_symlink()) and not force:
        raise UserError(f"--out {output}: exists already; choose another name, or replace it with --force")
    try:
        check_folder_name(output.stem)
    except ValueError as error:
        raise UserError(f"--out {output}: {error}") from None


def choose_source(
    files: Sequence[Path], columns: Sequence[str] | None, languages: tuple[str | None, str | None]
) -> TableColumns:
    """Return the source of two text files or of one table, and its columns."""
    if len(files) == 2:
        return TableColumns(_make_source(files), ("src", "tgt"))
    _check_file(files[0])
    return choose_columns(files[0], columns, *languages)


def _make_source(files: Sequence[Path]) -> Source:
    for path in files:
        _check_file(path)
        if is_table(path):
            raise UserError(f"{path}: a table holds both languages; pass it alone, without a second file")
        check_is_text(path)
    if files[0].samefile(files[1]):
        raise UserError(f"{files[0]} and {files[1]} are the same file; pass the sentences and their translations")
    return Source(src=(str(files[0]),), tgt=(str(files[1]),))


def _list_held_out_sets(
    found: Mapping[str, TableColumns], train: Sequence[Path], languages: tuple[str, str]
) -> Iterator[Setting]:
    """Yield the settings that name the validation and the test set.

    Raises `UserError` for files of unequal length, swapped sides, or the training files.
    """
    for key, (source, columns, _) in found.items():
        try:
            statistics = inspect_pairs(read_source(source, columns, BadRows()))
        except UnequalLengthError as error:
            raise UserError(f"--{key}: {error}") from None
        n_pairs, src, tgt = statistics.n_pairs, statistics.src.sample, statistics.tgt.sample
        names = " and ".join(source.files)
        if problem := describe_swapped_sides(languages, src, tgt):
            raise UserError(f"--{key}: {names}: {problem}; swap the files or columns")
        if all(path.samefile(each) for path, each in zip(train, source.files, strict=False)):
            raise UserError(f"--{key}: {names}: the training text cannot be held out; pass other pairs")
        keys = _list_source_keys(source, languages)
        if key == "validation":
            yield Setting("data", key, keys, f"{n_pairs:,} pairs, scored during the training")
        else:
            yield Setting("data", key, {"test": keys}, f"{n_pairs:,} pairs, scored at the end; never trained on")


def _check_file(path: Path) -> None:
    if str(path).startswith(("http:/", "https:/")):
        raise UserError(f"{str(path).replace(':/', '://', 1)}: is an address; download the file first (curl -O)")
    check_is_regular(path)
    if has_lone_surrogate(str(path)):
        raise UserError(f"{path}: its name is not UTF-8 text, so a configuration cannot contain it; rename the file")
    try:
        expand_path(str(path))
    except ValueError:
        raise UserError(
            f"{path}: contains $NAME, which a configuration refuses as an environment variable; rename file or folder"
        ) from None
    if path.stat().st_size == 0:
        raise UserError(f"{path}: is empty; is it the right file?")


def _check_statistics(statistics: CorpusStatistics, files: Sequence[Path]) -> None:
    names, n_pairs = " and ".join(map(str, files)), statistics.n_pairs
    if n_pairs < MIN_PAIRS_TO_SPLIT:
        raise UserError(
            f"{names}: {n_pairs} sentence pairs are too few to train and validate on; {MIN_PAIRS_TO_SPLIT} are needed"
        )
    if statistics.n_copies == n_pairs:
        raise UserError(
            f"{names}: source and target are equal in every pair; pass the sentences and their translations"
        )


def _choose_languages(
    statistics: CorpusStatistics, files: Sequence[Path], src_lang: str | None, tgt_lang: str | None
) -> tuple[str, str]:
    """Return the given languages, or the detected ones.

    Raises `UserError` if they are equal or swapped, or a text has no letters.
    """
    names = " and ".join(map(str, files))
    for side, name in ((statistics.src, "source"), (statistics.tgt, "target")):
        if not any(map(has_letters, side.sample)):
            raise UserError(f"{names}: the {name} text has no letters; pass another file or column (--columns)")
    detected_src, detected_tgt = (detect_language(side.sample) for side in (statistics.src, statistics.tgt))
    for side, language in (("src", src_lang or detected_src), ("tgt", tgt_lang or detected_tgt)):
        if language is None:
            raise UserError(
                f"{side}: the language cannot be detected, because its script is unknown; pass it as --{side}-lang"
            )
    src, tgt = str(src_lang or detected_src), str(tgt_lang or detected_tgt)
    if src == tgt:
        raise UserError(
            f"{names}: source and target are both {src}; if that is wrong, pass --src-lang and --tgt-lang;\n"
            f"for two variants of a language, pass two codes, such as --src-lang {src} --tgt-lang {src}-x-simple"
        )
    if problem := describe_swapped_sides((src, tgt), statistics.src.sample, statistics.tgt.sample):
        raise UserError(f"{names}: {problem}; swap --src-lang and --tgt-lang")
    return src, tgt


def _doubt_language(option: str, given: str | None, side: SideStatistics) -> Iterator[str]:
    """Yield a warning if a given code is unknown, or if the text seems to be in another language."""
    if given is None:
        return
    if not LanguageDetector.load().knows(given):
        yield f"{option} {given}: language detection does not know this code; correct it, if it is a mistake"
    elif problem := describe_other_language("the text", side.sample, given):
        yield f"{problem}; correct {option}, or swap the files"


def _explain_repair(source: Source, src_lang: str | None, tgt_lang: str | None) -> str:
    """Return how to repair files of unequal length, with a configuration for `tmt check`."""
    src, tgt = (
        given or detect_language([*islice(read_lines(Path(file)), HEAD_LINES)]) or "xx"
        for given, file in ((src_lang, source.src[0]), (tgt_lang, source.tgt[0]))
    )
    advice, config = advise_check(source.src[0], source.tgt[0], (src, tgt)).split("\n")
    return (
        f"{advice}, and `tmt check pairs.yaml --write repaired` pairs the lines again;\n"
        f"then `tmt init repaired/train.{src} repaired/train.{tgt}`, "
        f"and copy data.filters of repaired/pairs-repaired.yaml\n{config}"
    )


# --- text -------------------------------------------------------------------------------------------------------------


def _describe_corpus(statistics: CorpusStatistics, src_lang: str, tgt_lang: str) -> list[str]:
    lines = [f"A starting point for {src_lang} to {tgt_lang}, written by `tmt init`: {statistics.n_pairs:,} pairs."]
    for lang, side in ((src_lang, statistics.src), (tgt_lang, statistics.tgt)):
        spaces = "spaces" if side.is_spaced else "no spaces"
        lines.append(f"{lang}: {side.script.title()} script, {spaces} between words.")
    if statistics.n_empty:
        lines.append(f"Dropped because a side is empty: {statistics.n_empty:,}.")
    lines.append(f"Settings: {find_size_settings(statistics.n_pairs).evidence}.")
    return lines


def render(settings: Sequence[Setting], lines: list[str]) -> str:
    """Return the YAML text, with some lines about the corpus, and the reasons, as comments."""
    if any("BLEU" in setting.reason for setting in settings):
        lines = [*lines, BLEU_NOTE]
    lines = [f"# {line}".rstrip() for line in lines]
    width = min(MAX_WIDTH, max(len(entry) for entry, _ in _list_entries(settings)))
    for section, group in groupby(settings, lambda setting: setting.section):
        lines += [
            "",
            f"{section}:",
            *(f"  {entry:<{width}}  # {reason}" if reason else f"  {entry}" for entry, reason in _list_entries(group)),
        ]
    return "\n".join(lines) + "\n"


def _list_entries(settings: Iterable[Setting]) -> Iterator[tuple[str, str]]:
    for setting in settings:
        start = f"{render_value(setting.key)}:" if setting.key else "-"
        if setting.children:
            yield start, setting.reason
            yield from ((f"  {entry}", reason) for entry, reason in _list_entries(setting.children))
        else:
            yield f"{start} {render_value(setting.value)}", setting.reason


def _list_source_keys(source: Source, languages: tuple[str, str]) -> dict[str, object]:
    """Return the keys of `data.train`. Columns that are named like their language are left out."""
    if source.src:
        return {"src": source.src[0], "tgt": source.tgt[0]}
    if source.columns:
        return {"table": source.table[0], "columns": [*source.columns]}
    columns = {"src_column": source.src_column, "tgt_column": source.tgt_column}
    named = {key: name for (key, name), lang in zip(columns.items(), languages, strict=True) if name and name != lang}
    return {"table": source.table[0], **named}


# --- statistics -------------------------------------------------------------------------------------------------------

LETTERS_PER_SPACE = 20  # text with more letters per space has no spaces between words
SAMPLE_SIZE = 20_000  # pairs, spread evenly over the corpus, in which characters are counted


@dataclass
class SideStatistics:
    """Statistics of one language."""

    sample: list[str]
    script: str  # Unicode name of the most frequent one, such as LATIN
    is_spaced: bool  # words are separated by spaces
    n_characters: int  # different characters of the sample


@dataclass
class CorpusStatistics:
    """Statistics of both languages of a corpus."""

    n_pairs: int  # without those that have an empty side
    n_empty: int
    n_copies: int  # pairs whose sides are equal
    src: SideStatistics
    tgt: SideStatistics


def inspect_pairs(pairs: Iterable[SentencePair]) -> CorpusStatistics:
    """Read all pairs and return their statistics. Empty pairs are only counted."""
    n_pairs = n_empty = n_copies = 0
    sample: list[tuple[str, str]] = []
    stride, remaining = 1, iter(pairs)
    blocks = iter(lambda: [*islice(remaining, BLOCK_SIZE)], list[SentencePair]())
    for pair in chain.from_iterable(log_progress(blocks, "read")):
        if not (pair.src.strip() and pair.tgt.strip()):
            n_empty += 1
            continue
        if n_pairs % stride == 0:
            sample.append((pair.src, pair.tgt))
            if len(sample) == 2 * SAMPLE_SIZE:
                sample, stride = sample[::2], 2 * stride
        n_pairs += 1
        n_copies += pair.src == pair.tgt
    src, tgt = (_compute_statistics([pair[i] for pair in sample]) for i in (0, 1))
    return CorpusStatistics(n_pairs, n_empty, n_copies, src, tgt)


def _compute_statistics(sample: list[str]) -> SideStatistics:
    characters = Counter(chain.from_iterable(sample))
    letters = {character: count for character, count in characters.items() if character.isalpha()}
    scripts = Counter[str]()
    for letter, count in letters.items():
        scripts[find_script(letter)] += count
    script = scripts.most_common(1)[0][0] if scripts else "none"
    n_letters, n_gaps = sum(letters.values()), sum(len(text.split()) - 1 for text in sample)
    is_spaced = n_gaps * LETTERS_PER_SPACE >= n_letters
    if script not in UNSPACED_SCRIPTS and n_letters <= LETTERS_PER_SPACE * len(sample):
        is_spaced = True  # a line of a few letters may be one word, so that only its script tells
    return SideStatistics(sample, script, is_spaced, len(characters))
