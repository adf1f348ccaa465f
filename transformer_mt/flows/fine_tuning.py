"""The configuration that `tmt init --from RUN` writes: it fine-tunes a run on new pairs, with replay and a gate."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from transformer_mt.config.yaml_files import render_value
from transformer_mt.data.corpus import ParallelCorpus, make_line, split_off_validation
from transformer_mt.data.data_config import Direction, NamedSource, Source, TrainSource, is_known_tag, tag_error
from transformer_mt.data.sources import DESCRIPTIVE_KEYS, load_corpus
from transformer_mt.data.text_files import Pair
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config, DataSection
from transformer_mt.flows.export import make_record, write_weights_run
from transformer_mt.flows.init import InitialConfig, Setting, check_config_path, choose_source, render, write_config
from transformer_mt.flows.prepare import load_split
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs.checkpoints import list_distinct_weights, load_weights_of
from transformer_mt.runs.folder import RunFolder, check_is_outside_runs
from transformer_mt.system.files import write_text
from transformer_mt.system.log import cut_list, log
from transformer_mt.tools.languages.detection import describe_other_language, describe_swapped_corpus
from transformer_mt.tools.languages.scripts import split_units
from transformer_mt.tools.vocabulary.extension import extend_vocabulary

N_REPLAYED = 20_000  # training pairs of the run that are repeated, so that it forgets nothing
N_HELD_OUT = 1000  # the most pairs of a validation or test set
N_OLD_VALIDATION = 500  # of each source; with 200, the gate refused models that lost 1.2 BLEU on 1,000 test pairs
MIN_PAIRS = 100  # new pairs from which some are held out
GATE, EXTENSION_GATE = 2.0, 3.0  # BLEU that the old validation pairs may lose; about 1 BLEU of it is noise
TOKENS = 2048  # of a batch; a step has two batches, each of new or of old pairs
STEPS_PER_ROOT = 10  # steps for the square root of the number of new pairs
MIN_STEPS, MAX_STEPS = 200, 10_000
PEAK, PEAK_WIDTH = 3e-4, 256  # learning rate of models of this width; it falls with the square root of the width
EXTENSION_PEAK_FACTOR, EXTENSION_STEP_FACTOR = 3.5, 2  # for new pieces, which must be learned
MUON_SHARE, EXTENSION_MUON_SHARE = 1 / 8, 1 / 2  # of the learning rate of a run that was trained with Muon
WARMUP_STEPS = 20
N_VALIDATIONS = 10
VOCABULARY_PARTS = ("embeddings", "output", "output_bias")  # of the model, with a row for each symbol
START = "start"  # run folder with the extended vocabulary
TOKENS_PER_UNIT = 1.5  # estimated tokens of a word
PATIENCE = 5
MAX_DETECTED = 1000  # pairs in which the languages are detected
NEW, OLD = "new", "old"
MACHINE_KEYS = ("runs_dir", "device", "precision", "compile", "threads")
"""Settings of the machine, and the place of the run, which a new configuration resets."""


@dataclass(frozen=True)
class FineTuningInput:
    """Files of pairs for a fine-tuning, each time two text files or one table, and how they are read."""

    train: Sequence[Path]
    validation: Sequence[Path] = ()
    test: Sequence[Path] = ()
    replay: Sequence[Path] = ()  # old pairs; empty: those of the run
    src_lang: str | None = None
    tgt_lang: str | None = None
    tag: str | None = None
    columns: Sequence[str] | None = None
    max_bad_rows: int = 0
    extend_vocabulary: int | None = None  # the most new pieces of each side; None: keep the vocabulary


class SourcePairs(NamedTuple):
    """Pairs of one source of the new configuration: its name, files and further keys."""

    name: str  # of the source
    file: str  # name of its text files, without .src and .tgt
    pairs: list[Pair]
    keys: dict[str, Any]  # of the source, beside its name and files


class Splits(NamedTuple):
    """Training, validation and test pairs."""

    train: list[SourcePairs]
    validation: list[SourcePairs]
    test: list[SourcePairs]


def write_fine_tuning_config(
    run: RunFolder, given: FineTuningInput, output: Path, *, force: bool = False
) -> InitialConfig:
    """Write a configuration that fine-tunes a run on new pairs, and the folder `NAME-data` with its text.

    The folder beside the configuration has the new pairs, those held out from them, and samples of the training,
    validation and test pairs of the run.

    Raises:
        UserError: The pairs cannot be read or do not fit the run, the run has no checkpoint, or the output exists. A
            failed check writes nothing.
    """
    run.find_checkpoint("best")
    check_config_path(output, force)
    folder = output.with_name(f"{output.stem}-data")
    if folder.exists() and not force:
        raise UserError(f"{folder}: exists already; choose another --out, or replace its files with --force")
    check_is_outside_runs(folder, "choose another --out")
    is_extended = given.extend_vocabulary is not None
    try:
        old = configuration.load_run(run, [] if given.tag is None or is_extended else [f"decoding.tag={given.tag}"])
        direction = _extend_direction(old, given) if is_extended else _find_direction(old, given)
    except UserError as error:
        raise UserError(f"--from: {run.path}: {error}") from None
    new = _read_pairs(old, NEW, given, direction)
    known, warnings = _read_known_pairs(old, run, given)
    warnings += _warn_about_languages(new.train[0].pairs, direction)
    warnings += _warn_about_lost_tags(old, [*new.train, *known.train])
    start = RunFolder(folder / START) if is_extended else run
    if not (new.validation or known.validation):
        raise UserError(
            f"{given.train[0]}: {len(new.train[0].pairs)} pairs are too few to hold some out for validation; pass "
            f"{MIN_PAIRS} or more, or --validation, or {MIN_PAIRS} or more old pairs as --replay"
        )
    if new.validation:
        n_copies = 1
        validation_reason = "held out; new and old pairs: half of the score each" if known.validation else "held out"
    else:
        n_copies = _count_copies(new.train[0].pairs)
        validation_reason = "the new pairs, and held-out old ones"
        new = new._replace(validation=[new.train[0]._replace(file=f"{NEW}-valid")])
    settings = [*_choose_settings(old, start, folder, new, known, validation_reason, is_extended=is_extended)]
    base = render_value(os.path.relpath(run.config, output.parent))
    defaults = "".join(f"{key}: {render_value(Config.model_fields[key].default)}\n" for key in MACHINE_KEYS)
    text = (
        f"# Fine-tuning of {run.path}, written by `tmt init`.\n\n"
        f"base: {base}  # model, tokenizers, and all settings not below\n"
        f"# reset to the defaults, because the run may come from another machine:\n{defaults}{render(settings, [])}"
    )
    if given.extend_vocabulary is not None:
        new_source = {"name": NEW, **_source_keys(folder, new.train[0])}
        _write_start(run, start, [*new.train, *known.train], direction, new_source, given.extend_vocabulary)
    folder.mkdir(exist_ok=True)
    _write_pairs(folder, new, known, n_copies)
    write_config(output, text)
    n_pairs = sum(len(part.pairs) for part in new.train)
    tag = direction.tag
    advice = [f"the new pairs have the tag {tag}: translate with --tag {tag}"] if tag else []
    return InitialConfig(f"{run.path}, fine-tuned on {n_pairs:,} pairs", warnings, advice)


def _write_pairs(folder: Path, new: Splits, known: Splits, n_copies: int) -> None:
    """Write the text files. The new pairs are repeated `n_copies` times in the training text."""
    for part in chain(*new, *known):
        for suffix, lines in zip(("src", "tgt"), zip(*part.pairs, strict=True), strict=True):
            text = "".join(map(make_line, lines))
            write_text(folder / f"{part.file}.{suffix}", text * (n_copies if part in new.train else 1))


# --- languages and vocabulary -----------------------------------------------------------------------------------------


def _find_direction(old: Config, given: FineTuningInput) -> Direction:
    """Return a direction that the run knows. Raises `UserError` for another one."""
    languages = old.data.languages_of(given.tag)
    src, tgt = given.src_lang or languages[0], given.tgt_lang or languages[1]
    if (src, tgt) != languages:
        tag = "leave out --src-lang and --tgt-lang" if given.tag else "pass --tag if it has one for these languages"
        raise UserError(
            f"translates from {languages[0]} to {languages[1]}, not from {src} to {tgt}; {tag}, or pass "
            "--extend-vocabulary 4000 to add them"
        )
    return Direction(src, tgt, given.tag)


def _extend_direction(old: Config, given: FineTuningInput) -> Direction:
    """Return the direction of pairs that may have a new language. A new target language gets a tag of its name."""
    data = old.data
    tag = given.tag
    is_known = tag is not None and is_known_tag(tag, data.tags)
    languages = data.languages_of(tag) if is_known else (data.src_lang, data.tgt_lang)
    src, tgt = given.src_lang or languages[0], given.tgt_lang or languages[1]
    if tag is None and tgt not in _list_languages(old)[1]:
        tag = tgt
    names_both = any(":" in known for known in data.tags)
    if names_both and (tag is None or ":" not in tag):
        raise UserError(f"its tags name both languages, such as {data.tags[0]}; pass such a tag as --tag")
    if tag is not None and ":" in tag and not names_both:
        raise UserError(f"--tag {tag} adds a tag before the target, but no tag of this run does; pass --tag {tgt}")
    if data.needs_tag and tag is None:
        raise tag_error(None, data.tags)
    return Direction(src, tgt, tag)


def _find_replay_direction(old: Config, run: RunFolder, tag: str | None) -> Direction:
    """Return the direction of `--replay`: of `--tag` if the run knows it, else of `decoding.tag`.

    Raises `UserError` if the pairs need a tag, and neither is known.
    """
    found = next((each for each in (tag, old.decoding.tag) if each and is_known_tag(each, old.data.tags)), None)
    if found is None and old.data.needs_tag:
        tags = ", ".join(cut_list(old.data.tags))
        raise UserError(f"--replay: the old pairs need a tag: set decoding.tag in {run.config} to one of {tags}")
    return Direction(*old.data.languages_of(found), found)


def _list_languages(old: Config) -> tuple[set[str], set[str]]:
    """Return the source and the target languages of a run."""
    found = [source.languages(old.data.src_lang, old.data.tgt_lang) for source in old.data.train_sources]
    return {src for src, _ in found}, {tgt for _, tgt in found}


def _write_start(
    run: RunFolder,
    start: RunFolder,
    parts: Sequence[SourcePairs],
    direction: Direction,
    new_source: Mapping[str, Any],
    size: int,
) -> None:
    """Write the run folder from which the training starts: the best weights, with rows for new pieces and a new tag.

    Pieces are learned from the text of new languages; without one, from all new text.
    """
    old = configuration.load_settings(run)
    tokenizers = TokenizerPair.load(run.tokenizer)
    model = Transformer(old.model, tokenizers.src, tokenizers.tgt)
    checkpoint = load_weights_of(model, run, "best")
    is_new = [language not in known for language, known in zip(direction[:2], _list_languages(old), strict=True)]
    new_texts, old_texts = (
        [[pair[side] for part in parts if (part.name == NEW) is wanted for pair in part.pairs] for side in (0, 1)]
        for wanted in (True, False)
    )
    learned = [texts if new or not any(is_new) else [] for texts, new in zip(new_texts, is_new, strict=True)]
    extended = extend_vocabulary(tokenizers, learned, old_texts, size, direction.tag)
    what = f"{run.path}, step {checkpoint.step:,}, with an extended vocabulary"
    record = make_record(run, what, [checkpoint.step], is_changed=True)
    extended_model = extended.extend_model(model)
    weights = list_distinct_weights(extended_model)
    if start.path.exists():
        start.move_aside()
    config = _add_source(old, new_source).model_copy(update={"model": extended_model.config})
    step, metric, scores = checkpoint.step, checkpoint.metric, checkpoint.scores
    write_weights_run(start.path, config, extended.tokenizers, record, weights, step, metric, scores)
    n_src, n_tgt = (
        new.vocab_size - known.vocab_size
        for new, known in ((extended.tokenizers.src, tokenizers.src), (extended.tokenizers.tgt, tokenizers.tgt))
    )
    new_symbols = f"{n_src:,} new symbols of the source, {n_tgt:,} of the target"
    if extended.tokenizers.src is extended.tokenizers.tgt:
        new_symbols = f"{n_src:,} new symbols, for source and target"
    log(f"{start.path}: {new_symbols}")


def _add_source(old: Config, new: Mapping[str, Any]) -> Config:
    """Return the configuration with one more source, from which commands know the languages of its tag."""
    sources = old.data.train_sources
    keys = [{**each.model_dump(exclude_defaults=True), "name": _name_old_source(each)} for each in sources]
    weight = {"weight": 1} if "weight" in keys[0] else {}
    train = tuple(TrainSource.model_validate(each) for each in (*keys, {**new, **weight}))
    return old.model_copy(update={"data": old.data.model_copy(update={"train": train})})


# --- pairs ------------------------------------------------------------------------------------------------------------


def _read_pairs(old: Config, name: str, given: FineTuningInput, direction: Direction) -> Splits:
    """Read the pairs of files, with held-out ones unless their files are given.

    Training pairs with a held-out sentence are left out. None are held out from few pairs, such as corrections.
    """

    def load(files: Sequence[Path]) -> ParallelCorpus:
        source = choose_source(files, given.columns, direction[:2]).source
        corpus = load_corpus(source, *direction[:2], Path(old.data.cache_dir), max_bad_rows=given.max_bad_rows)
        if problem := describe_swapped_corpus(corpus, direction[:2]):
            raise UserError(
                f"{files[0]}: {problem}; swap the files (or --columns), because the run translates from "
                f"{direction.src_lang} to {direction.tgt_lang}"
            )
        return corpus

    train = load(given.train)
    held_out: dict[str, ParallelCorpus] = {}
    is_divided = len(train) >= MIN_PAIRS
    for number, (part, files) in enumerate({"test": given.test, "valid": given.validation}.items()):
        if files:
            held_out[part] = load(files)
        elif is_divided:
            train, held_out[part] = split_off_validation(train, N_HELD_OUT, seed=number)
    held_out_src, held_out_tgt = (
        {*chain.from_iterable(corpus.column(side) for corpus in held_out.values())} for side in ("src", "tgt")
    )
    defaults = Direction(old.data.src_lang, old.data.tgt_lang, None)
    keys = {key: value for key, value in direction._asdict().items() if value != getattr(defaults, key)}

    def make(part: str, pairs: Iterable[Pair]) -> SourcePairs:
        return SourcePairs(name, f"{name}-{part}", [*pairs], keys)

    complete = (pair for pair in train if all(map(str.strip, pair)))
    kept = [pair for pair in complete if pair[0] not in held_out_src and pair[1] not in held_out_tgt]
    if not kept:
        raise UserError(
            f"{given.train[0]}: each pair has an empty side, or a side that is validation or test text; pass others"
        )
    return Splits(
        [make("train", kept)],
        *([make(part, held_out[part])] if part in held_out else [] for part in ("valid", "test")),
    )


def _read_known_pairs(old: Config, run: RunFolder, given: FineTuningInput) -> tuple[Splits, list[str]]:
    """Return the pairs of `--replay`, or samples of those of the run. A warning says if these cannot be read."""
    if given.replay:
        files = replace(given, train=given.replay, validation=(), test=())
        return _read_pairs(old, OLD, files, _find_replay_direction(old, run, given.tag)), []
    try:
        return _sample_known_pairs(old), []
    except UserError as error:
        reason = f"the pairs of {run.path} cannot be read; pass some as --replay\n({error})"
        return Splits([], [], []), [f"the model may forget: {reason}"]


def _sample_known_pairs(old: Config) -> Splits:
    """Return samples of the pairs of the run. Without test sets, a part of the validation pairs is the test set.

    Raises:
        UserError: They cannot be read.
    """
    data = old.data
    train = _sample("train", load_split(old, "train"), data.train_sources, N_REPLAYED)
    n_held_out = N_OLD_VALIDATION * len(data.validation_sources) * (1 if data.test else 2)
    validation = _sample("valid", load_split(old, "validation"), data.validation_sources, n_held_out)
    test = [
        part._replace(name=f"{OLD}-{name}")
        for name, source in data.test.items()
        for part in _sample(f"test-{name}", load_split(old, name), [source], N_HELD_OUT)
    ]
    if not test:
        divided = [part for part in validation if len(part.pairs) > 1]
        test = [part._replace(file=part.file.replace("valid", "test"), pairs=part.pairs[1::2]) for part in divided]
        validation = [part._replace(pairs=part.pairs[::2]) for part in validation]
    return Splits(train, validation, test)


def _sample(name: str, corpus: ParallelCorpus, sources: Sequence[Source], size: int) -> list[SourcePairs]:
    """Return about `size` pairs of a corpus, equally many of each source. A source of weight 0 is left out."""
    texts = corpus.split_sources()
    found: list[SourcePairs] = []
    for number, (source, text) in enumerate(zip(sources, texts, strict=True)):
        weight = 1.0 if not isinstance(source, TrainSource) or source.weight is None else source.weight
        if len(text) and weight:  # validation pairs that were split off need not come from every source
            own_name = _name_old_source(source)
            keys = source.model_dump(include={*DESCRIPTIVE_KEYS}, exclude_none=True)
            pairs = [*text.select_evenly(size // len(texts))]
            found.append(SourcePairs(own_name, f"{OLD}-{name}-{number}", pairs, keys))
    return found


def _name_old_source(source: Source) -> str:
    return f"{OLD}-{source.name}" if isinstance(source, NamedSource) else OLD


# --- settings ---------------------------------------------------------------------------------------------------------


def _choose_settings(
    old: Config, run: RunFolder, folder: Path, new: Splits, known: Splits, validation_reason: str, *, is_extended: bool
) -> Iterator[Setting]:
    """Yield the data, and the settings that differ from those of the run."""

    def list_sources(parts: Sequence[SourcePairs], **weights: float) -> list[Setting]:
        return [
            Setting(
                "data", "", {"name": part.name, **_source_keys(folder, part), **weights}, f"{len(part.pairs):,} pairs"
            )
            for part in parts
        ]

    share = 1 / max(1, len(known.train))
    train = [*list_sources(new.train, weight=1), *list_sources(known.train, weight=float(f"{share:.3g}"))]
    yield Setting("data", "train", None, "half of the batches are new pairs" if known.train else "", train)
    validation = list_sources([*new.validation, *known.validation])
    yield Setting("data", "validation", None, validation_reason, validation)
    tests = [Setting("data", part.name, _source_keys(folder, part), "") for part in (*new.test, *known.test)]
    yield Setting("data", "test", {}, "scored at the end, and with the weights of the start" if tests else "", tests)
    yield Setting("data", "cache_dir", DataSection.model_fields["cache_dir"].default, "")
    n_new = len(new.train[0].pairs)
    n_steps = round(STEPS_PER_ROOT * math.sqrt(n_new)) * (EXTENSION_STEP_FACTOR if is_extended else 1)
    n_steps = min(MAX_STEPS, max(MIN_STEPS, n_steps))
    peak = PEAK * math.sqrt(PEAK_WIDTH / old.model.d_model) * (EXTENSION_PEAK_FACTOR if is_extended else 1)
    keeps_muon = old.optimizer.kind == "muon"
    if keeps_muon:
        peak = old.schedule.peak * (EXTENSION_MUON_SHARE if is_extended else MUON_SHARE)
    gate = {part.name: EXTENSION_GATE if is_extended else GATE for part in known.validation}
    freeze = tuple(part for part in old.model.freeze if not is_extended or part not in VOCABULARY_PARTS)
    settings = [
        Setting("data", "filters", (), "the new pairs are not filtered"),
        Setting("data", "temperature", 1.0, ""),
        Setting(
            "model", "output_bias", old.model.output_bias or is_extended, "low for new symbols until they are trained"
        ),
        Setting("model", "freeze", freeze, "without parts that new symbols train"),
        Setting("batches", "tokens", TOKENS, ""),
        Setting("batches", "accumulate", 2, "batches of a step, each of new or of old pairs"),
        Setting("batches", "packed_positions", "auto", "measured again"),
        Setting("optimizer", "kind", "muon" if keeps_muon else "adamw", ""),
        Setting("schedule", "kind", "wsd", "constant, then decay"),
        Setting("schedule", "warmup_steps", WARMUP_STEPS, ""),
        Setting("schedule", "peak", float(f"{peak:.2g}"), "low, so that little is forgotten"),
        Setting("schedule", "total_steps", None, ""),
        Setting("schedule", "decay_steps", None, ""),
        Setting("train", "init_from", str(run.path), "the weights to start from"),
        Setting("train", "max_steps", n_steps, f"for {n_new:,} new pairs"),
        Setting("train", "max_epochs", None, ""),
        Setting("train", "waiting", "auto", ""),
        Setting("train", "cuda_graphs", False, ""),
        Setting("train", "log_every", max(1, n_steps // 20), ""),
        Setting("validation", "every", f"{n_steps // N_VALIDATIONS} steps", ""),
        Setting("validation", "metric", "chrf++", ""),
        Setting("validation", "patience", PATIENCE, "validations without improvement before it stops"),
        Setting("validation", "gate", gate, "what old pairs may lose"),
    ]
    yield from (each for each in settings if each.value != getattr(getattr(old, each.section), each.key))


def _source_keys(folder: Path, part: SourcePairs) -> dict[str, Any]:
    """Return the keys of a source, except its name and weight."""
    return {"src": str(folder / f"{part.file}.src"), "tgt": str(folder / f"{part.file}.tgt"), **part.keys}


def _count_copies(pairs: Sequence[Pair]) -> int:
    """Return how often a few pairs occur in the training text, so that they fill a batch.

    A step averages the loss over the tokens of its batches. Without copies, the pairs would have almost no weight
    beside a full batch of replay.
    """
    n_units = sum(len(split_units(tgt)) for _, tgt in pairs)
    return max(1, round(TOKENS / (TOKENS_PER_UNIT * n_units)))


def _warn_about_lost_tags(old: Config, parts: Sequence[SourcePairs]) -> Iterator[str]:
    """Yield a warning if the run knows tags that no training pair has."""
    tags = [*filter(None, (part.keys.get("tag") for part in parts))]
    if lost := [tag for tag in old.data.tags if not is_known_tag(tag, tags)]:
        listed = ", ".join(cut_list(lost))
        yield f"no new or replayed pair has the tags {listed}, so the new run cannot use them"


def _warn_about_languages(pairs: Sequence[Pair], direction: Direction) -> Iterator[str]:
    """Yield a warning for each side that is certainly in another language."""
    if len(pairs) < MIN_PAIRS:
        return
    sides = zip(zip(*pairs[:MAX_DETECTED], strict=True), direction[:2], ("--src-lang", "--tgt-lang"), strict=True)
    for lines, language, option in sides:
        if problem := describe_other_language("the text", lines, language):
            yield f"{problem}; for a new language, pass its code as {option}, with --extend-vocabulary 4000"
