"""The translator: lines of text go through tokenizers, stages and an engine, and come back as translations.

    line -> segments -> stages -> tokens -> engine -> hypotheses -> stages -> translations -> review -> line

A line that is long for the model is divided into parts. The parts of all lines are searched in batches of similar
length. What happens beyond the search, such as the review, is a value, `TranslatorHooks`.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import UnionType
from typing import TYPE_CHECKING, TypeVar, cast

from transformer_mt.config.section import has_lone_surrogate
from transformer_mt.data.characters import REPLACEMENT, has_letters, leave_out_invalid_bytes
from transformer_mt.data.data_config import tag_error
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.hooks import (
    CaseStage,
    DecodingChanges,
    Fault,
    Job,
    PreparedText,
    TextStage,
    TranslatorHooks,
    UnusualCharacterStage,
    find_segment_faults,
    review,
)
from transformer_mt.decoding.interface import (
    UNKNOWN_MODEL,
    Engine,
    Hypothesis,
    LoadedRun,
    ModelProvenance,
    batch_by_length,
)
from transformer_mt.decoding.segments import LineDivider, Segment, Translation, WordAlignment, join_n_best
from transformer_mt.errors import UserError
from transformer_mt.system.device import ResolvedPrecision

if TYPE_CHECKING:
    from transformer_mt.decoding.engine import TorchEngine
    from transformer_mt.model.transformer import Transformer

TextT = TypeVar("TextT", str, str | None, str | Segment)
OnBatch = Callable[[int], None]
"""Called after each batch with the number of texts that are translated."""
PART_STRIDE = 1 << 32
"""Difference of the line numbers of consecutive parts of a line, above any line number.

So parts of a line have different random samples.
"""


class TruncatedSourceWarning(UserWarning):
    """A source was longer than `decoding.max_source_length` or than the model's learned positions."""


class UnscoredPairWarning(UserWarning):
    """A pair to be scored was longer than the model can read."""


class Translator:
    """A model, or an ensemble, with its tokenizers. Several threads may use one translator at the same time.

    >>> load_translator("runs/quickstart").translate(["The old dog sleeps."])
    ['Der alte Hund schläft.']
    """

    def __init__(
        self,
        engine: Engine,
        tokenizers: TokenizerPair,
        config: DecodingConfig,
        runs: Sequence[LoadedRun] = (),
        hooks: TranslatorHooks | None = None,
    ) -> None:
        """Create a translator. `runs` are those that the models of the engine were loaded from."""
        self.engine, self.tokenizers, self.config = engine, tokenizers, config
        self.runs, self.hooks = runs, hooks or TranslatorHooks()

    @classmethod
    def from_model(
        cls, model: Transformer, tokenizers: TokenizerPair, config: DecodingConfig, precision: ResolvedPrecision
    ) -> Translator:
        """Return a translator with a copy of a model, which may continue to train."""
        from transformer_mt.decoding.engine import TorchEngine, prepare_for_inference

        return cls(
            TorchEngine([prepare_for_inference(copy.deepcopy(model), precision)], tokenizers), tokenizers, config
        )

    # --- models and options ----------------------------------------------------------------------------------------

    @property
    def model(self) -> Transformer:
        """The only model. Raises `UserError` for an ensemble."""
        models = self.torch_engine.models
        if len(models) != 1:
            raise UserError(f"one model is needed, and this is an ensemble of {len(models)}")
        return models[0]

    @property
    def torch_engine(self) -> TorchEngine:
        """The PyTorch engine. Raises `UserError` if only CTranslate2 is loaded."""
        return cast("TorchEngine", self.engine.as_torch())

    @property
    def max_positions(self) -> int:
        """Length of the longest sequence that the model can read."""
        return self.engine.max_positions

    def provenance(self) -> ModelProvenance:
        """Describe the model and its training data, with the languages of `decoding.tag`."""
        return self.provenance_of(self.config.tag)

    def provenance_of(self, tag: str | None) -> ModelProvenance:
        """Describe the model and its training data, with the languages of a tag."""
        if not self.runs:
            return UNKNOWN_MODEL
        return ModelProvenance.of_runs(self.runs, tag, self.engine.name, self.engine.precision)

    @cached_property
    def option_stages(self) -> Sequence[TextStage]:
        """The stages for the options. Raises `UserError` if a glossary is invalid, or `make_stages` is missing."""
        if not (keys := self.config.active_stage_keys):
            return ()
        if not self.engine.has_alignments:
            lacks = f"{self.engine.name} supports neither word alignment nor required terms"
            raise UserError(f"decoding.{keys[0]}: {lacks}; use --engine torch or auto")
        if self.hooks.make_stages is None:
            raise UserError(f"decoding.{keys[0]}: needs text stages; load the run with load_translator")
        return self.hooks.make_stages(self.config, self.tokenizers)

    def list_stages(self, tag: str | None) -> Sequence[TextStage]:
        """Return the stages of texts with a tag.

        Those of characters and letter case come last, so that the others see the original text.
        """
        stages = [*self.option_stages, UnusualCharacterStage(self.tokenizers.src)]
        if self.config.restore_case:
            provenance, has_alignments = self.provenance_of(tag), self.engine.has_alignments
            languages = provenance.src_lang, provenance.tgt_lang
            stages.append(CaseStage(self.tokenizers.src, *languages, has_alignments=has_alignments))
        return stages

    def with_options(self, options: Mapping[str, object]) -> Translator:
        """Return a translator with other options that shares the model. Raises `UserError` for invalid options."""
        config = self.config.with_options(options)
        return Translator(self.engine, self.tokenizers, config, self.runs, self.hooks)

    def with_hooks(self, hooks: TranslatorHooks) -> Translator:
        """Return a translator with other hooks that shares the model."""
        return Translator(self.engine, self.tokenizers, self.config, self.runs, hooks)

    # --- tokens -----------------------------------------------------------------------------------------------------

    @property
    def max_source_tokens(self) -> int:
        """Maximum tokens of a source, without EOS, BOS and the tag."""
        return min(self.config.max_source_length, self.max_positions - self.tokenizers.n_source_controls)

    @property
    def max_segment_tokens(self) -> int:
        """Maximum tokens of a source that the model can read, and that the training pairs rarely exceed."""
        return min(self.provenance().longest_source, self.max_source_tokens)

    def count_tokens(self, texts: Sequence[str], tag: str | None) -> list[int]:
        """Return the number of tokens of texts with a tag, in the form in which the model reads them."""
        stages = self.list_stages(tag)
        sentences = [PreparedText.make(Segment.from_text(text), stages).sentence for text in texts]
        return [len(ids) for ids in self.tokenizers.src.encode(sentences)]

    def encode(
        self, texts: Sequence[str], line_numbers: Sequence[int], src_tags: Sequence[list[int]]
    ) -> list[list[int]]:
        """Return the ids of each text, after the ids of its tag (`src_tags`). Cut long texts, with a warning."""
        sources, limit = self.tokenizers.src.encode(texts), self.max_source_tokens
        for text, number, ids in zip(texts, line_numbers, sources, strict=True):
            if len(ids) > limit and has_letters(text):  # others are copied
                message = f"{name_line(number)} has {len(ids)} tokens and was cut to {limit}"
                warnings.warn(TruncatedSourceWarning(message), stacklevel=3)
            del ids[limit:]
        return [tag + ids if ids else ids for tag, ids in zip(src_tags, sources, strict=True)]

    def tag_ids(self, tags: Sequence[str | None]) -> list[tuple[list[int], list[int]]]:
        """Return the ids that each tag puts before a source, and before its translation.

        Raises `UserError` if the model does not know a tag, or needs one.
        """
        if self.tokenizers.needs_tag and None in tags:
            raise tag_error(None, self.tokenizers.tags)
        ids = {tag: self.tokenizers.tag_ids(tag) for tag in dict.fromkeys(tags)}
        return [ids[tag] for tag in tags]

    # --- lines ------------------------------------------------------------------------------------------------------

    def translate(
        self,
        texts: Iterable[str],
        line_numbers: Sequence[int] | None = None,
        *,
        tags: Sequence[str | None] | None = None,
        on_batch: OnBatch | None = None,
        **options: object,
    ) -> list[str]:
        """Return one translation per text, in order. A text without visible characters gives "". Tabs are kept.

        `line_numbers` are for warnings and for random sampling, by default 1, 2, ... Options are keys of the section
        `decoding`, such as `beam=1`. A text longer than `max_source_length` or the model's positions is cut, with a
        `TruncatedSourceWarning`, unless it is divided.
        `on_batch` is called after each batch with the approximate number of translated texts.
        """
        needs_options = options or self.config.n_best != 1  # their validation takes 5 % of a small model's time
        translator = self.with_options({**options, "n_best": 1}) if needs_options else self
        n_best_lists = translator.n_best(texts, line_numbers, scores=False, tags=tags, on_batch=on_batch)
        return [best.text for best, *_ in n_best_lists]

    def n_best(
        self,
        texts: Iterable[str | Segment],
        line_numbers: Sequence[int] | None = None,
        *,
        alignments: bool = False,
        scores: bool = True,
        tags: Sequence[str | None] | None = None,
        on_batch: OnBatch | None = None,
        **options: object,
    ) -> list[list[Translation]]:
        """Return up to `n_best` translations of each text, the best first, but at least one.

        Those of a beam search have different texts. There may be fewer than `n_best`, because hypotheses with the same
        text are merged. A text without letters is its own translation, unless it has a glossary term.
        Without `scores` an engine may omit them, if this is faster.

        `tags` has the tag of each text; by default it is `decoding.tag`.
        """
        if alignments and not self.engine.has_alignments:
            raise UserError(
                f"--alignments: {self.engine.name} does not compute word alignments; use --engine torch or auto"
            )
        translator = self.with_options(options) if options else self
        texts = list_texts("texts", texts, str | Segment)
        line_numbers = resolve_line_numbers(len(texts), line_numbers)
        tags = [translator.config.tag] * len(texts) if tags is None else list_texts("tags", tags, str | None)
        if len(tags) != len(texts):
            raise UserError(f"tags: {len(tags)} for {len(texts)} texts; give one, or None, for each")
        translator.tag_ids(tags)  # check them before a line is divided by the rules of their languages
        search = _LineSearch(translator, line_numbers, tags, alignments, scores)
        return search.translate([translator.read(text) for text in texts], on_batch)

    def read(self, line: str | Segment) -> Segment:
        """Return a line as the segment that the stages know, with its protected elements."""
        for stage in self.option_stages:
            line = stage.read(line)
        return Segment.from_text(line) if isinstance(line, str) else line

    def make_divider(self, tag: str | None) -> LineDivider:
        """Return what divides lines with a tag.

        Parts are at most as long as the training pairs, and fit the model. Longer sentences are split into parts of a
        usual length, because training had few sentences of the maximum length. A part has several sentences only if at
        least every twentieth source of the training had as many.
        """
        provenance = self.provenance_of(tag)
        limit, lengths = self.max_segment_tokens, provenance.lengths
        return LineDivider(
            provenance.src_lang,
            partial(self.count_tokens, tag=tag),
            limit,
            self.hooks.split,
            1 if lengths is None else lengths.sentences.p95,
            None if lengths is None else min(limit, lengths.tokens.p95),
        )

    # --- segments ---------------------------------------------------------------------------------------------------

    def search_segments(
        self,
        segments: Sequence[Segment],
        line_numbers: Sequence[int],
        *,
        alignments: bool,
        scores: bool,
        tags: Sequence[str | None],
        on_batch: OnBatch | None,
    ) -> list[list[Translation]]:
        """Return the n-best translations of segments that stages have read. They are not divided."""
        stages = {tag: self.list_stages(tag) for tag in dict.fromkeys(tags)}
        prepared = [PreparedText.make(segment, stages[tag]) for segment, tag in zip(segments, tags, strict=True)]
        tag_ids = self.tag_ids(tags)
        sources = self.encode([each.sentence for each in prepared], line_numbers, [src for src, _ in tag_ids])
        tgt_tags = [tag for _, (tag,) in tag_ids] if any(tgt for _, tgt in tag_ids) else None
        hypotheses = self.search_ids(prepared, sources, line_numbers, tgt_tags, scores=scores, on_batch=on_batch)
        aligned = self._align(prepared, sources, hypotheses, alignments)
        return self._finish(prepared, sources, hypotheses, aligned, keeps_alignments=alignments)

    def search_ids(
        self,
        prepared: Sequence[PreparedText],
        sources: list[list[int]],
        line_numbers: Sequence[int],
        tgt_tags: Sequence[int] | None,
        *,
        scores: bool = True,
        on_batch: OnBatch | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate the sources of texts that are not copied, in batches of similar length.

        `tgt_tags` has the tag symbol that starts the translations of each source; None: no tags. A source whose
        translations do not fulfil its constraint is searched again, with the constraint.
        """
        hypotheses = [[Hypothesis([], [], finished=True, was_searched=False)] for _ in prepared]
        n_tokens = self.max_positions - 1 - self.tokenizers.n_target_tags
        constraints = [each.constraint(n_tokens, number) for each, number in zip(prepared, line_numbers, strict=True)]
        pending = {  # lengths of the sources without a final translation
            i: len(sources[i])
            for i, each in enumerate(prepared)
            if sources[i] and (has_letters(each.sentence) or constraints[i])
        }

        def search_pending(config: DecodingConfig, *, is_constrained: bool) -> None:
            for batch in batch_by_length({**pending}, config.batch_tokens // config.n_beams):
                n_best_lists = self.engine.search(
                    [sources[i] for i in batch],
                    config,
                    [line_numbers[i] for i in batch],
                    None if tgt_tags is None else [tgt_tags[i] for i in batch],
                    [each for i in batch if (each := constraints[i]) is not None] if is_constrained else None,
                    scores=scores,
                )
                for i, n_best in zip(batch, n_best_lists, strict=True):
                    hypotheses[i] = choose_n_best(n_best, self.config, self.tokenizers)
                    constraint = constraints[i]
                    if (
                        is_constrained
                        or constraint is None
                        or all(constraint.accepts(one.ids) for one in hypotheses[i])
                    ):
                        del pending[i]
                if on_batch is not None:
                    on_batch(len(prepared) - len(pending))

        search_config = self.config.for_search()
        search_pending(search_config, is_constrained=False)
        if pending:
            search_pending(search_config.with_constraint_beam(), is_constrained=True)
        return hypotheses

    def _align(
        self,
        prepared: Sequence[PreparedText],
        sources: list[list[int]],
        hypotheses: list[list[Hypothesis]],
        is_requested: bool,
    ) -> dict[int, list[WordAlignment]]:
        """Return the word alignments of the hypotheses of the texts that need them, by their index."""
        rows = [i for i, each in enumerate(prepared) if is_requested or each.needs_alignment()]
        if not rows:
            return {}
        sentences = [prepared[i].sentence for i in rows]
        found = iter(self.torch_engine.align(sentences, [sources[i] for i in rows], [hypotheses[i] for i in rows]))
        return {i: [next(found) for _ in hypotheses[i]] for i in rows}

    def _finish(
        self,
        prepared: Sequence[PreparedText],
        sources: Sequence[Sequence[int]],
        hypotheses: Sequence[Sequence[Hypothesis]],
        aligned: Mapping[int, Sequence[WordAlignment]],
        *,
        keeps_alignments: bool,
    ) -> list[list[Translation]]:
        """Return the n-best translations of each text. A line break in a translation would split the output line."""
        tokenizer, n_tags = self.tokenizers.tgt, self.tokenizers.n_target_tags
        texts = iter(tokenizer.decode([each.ids for n_best in hypotheses for each in n_best]))
        n_best_lists: list[list[Translation]] = []
        for i, (each, n_best) in enumerate(zip(prepared, hypotheses, strict=True)):
            n_best_lists.append([])
            for hypothesis, alignment in zip(n_best, aligned.get(i, [None] * len(n_best)), strict=True):
                text, tokens = next(texts).rstrip(), tokenizer.tokens(hypothesis.ids[n_tags:])
                if not hypothesis.was_searched and sources[i] and each.sentence.strip():
                    text = each.sentence
                    alignment = None if alignment is None else [(word, word) for word in range(len(text.split()))]
                elif REPLACEMENT in text:
                    alignment = alignment and realign_without_invalid_words(text, alignment)
                    text = leave_out_invalid_bytes(text)
                content = Segment.from_text(text.replace("\n", " "))
                score, log_probs, finished = hypothesis.score, hypothesis.log_probs[n_tags:], hypothesis.finished
                translation = each.finish(Translation(content, score, tokens, log_probs, finished, alignment))
                if keeps_alignments and translation.alignment is None:
                    raise UserError(
                        "alignments: they are not available for text with protected elements; leave out --alignments, "
                        "or set decoding.markup: none and use no glossary with the option keep"
                    )
                n_best_lists[-1].append(translation if keeps_alignments else without_alignment(translation))
        return n_best_lists

    # --- scores of given translations -------------------------------------------------------------------------------

    def score(
        self, sources: Iterable[str], targets: Iterable[str], line_numbers: Sequence[int] | None = None
    ) -> list[Translation]:
        """Return each target as a translation of its source, with the log-probabilities of the model.

        The score is minus infinity if a side is blank, also after normalisation. It is minus infinity, with an
        `UnscoredPairWarning`, if a side is longer than `max_source_length` or the model's positions. `line_numbers` are
        for warnings, by default 1, 2, ...
        """
        sources, targets = list_texts("sources", sources, str), list_texts("targets", targets, str)
        if len(sources) != len(targets):
            raise UserError(f"sources: {len(sources)}, targets: {len(targets)}; give one for each")
        line_numbers = resolve_line_numbers(len(sources), line_numbers)
        src, tgt = self.tokenizers.src.encode(sources), self.tokenizers.tgt.encode(targets)
        ((src_tag, tgt_tag),) = self.tag_ids([self.config.tag])
        scored = [
            i
            for i, number in enumerate(line_numbers)
            if sources[i].strip() and targets[i].strip() and src[i] and tgt[i] and self._fits(number, src[i], tgt[i])
        ]
        sides = [src_tag + src[i] for i in scored], [tgt_tag + tgt[i] for i in scored]
        found = self.engine.score(*sides, self.config.batch_tokens)
        log_probs = {i: each[len(tgt_tag) :] for i, each in zip(scored, found, strict=True)}
        return [self._scored_target(text, tgt[i], log_probs.get(i)) for i, text in enumerate(targets)]

    def _fits(self, line_number: int, src: list[int], tgt: list[int]) -> bool:
        """Return whether the model can read a pair; warn otherwise."""
        max_target = self.max_positions - 1 - self.tokenizers.n_target_tags
        limits = self.max_source_tokens, min(self.config.max_source_length, max_target)
        if len(src) <= limits[0] and len(tgt) <= limits[1]:
            return True
        sizes, maximum = (f"{one} source and {other} target tokens" for one, other in ((len(src), len(tgt)), limits))
        message = f"line {line_number} has {sizes}, and at most {maximum} are scored"
        warnings.warn(UnscoredPairWarning(message), stacklevel=3)
        return False

    def _scored_target(self, text: str, ids: list[int], log_probs: list[float] | None) -> Translation:
        """Return a given target with its log-probabilities; None and NaN become a score of minus infinity."""
        content, tokens = Segment.from_text(text), self.tokenizers.tgt.tokens(ids)
        if log_probs is None or math.isnan(sum(log_probs)):
            return Translation(content, -math.inf, tokens, [], finished=True)
        return Translation(content, sum(log_probs), tokens, log_probs, finished=True)


@dataclass(frozen=True)
class _LineSearch:
    """One call of `Translator.n_best`: lines are divided, searched, reviewed and joined."""

    translator: Translator
    line_numbers: Sequence[int]
    tags: Sequence[str | None]
    alignments: bool
    scores: bool

    @cached_property
    def provenances(self) -> Mapping[str | None, ModelProvenance]:
        """The provenance of the model for each tag, with its languages."""
        return {tag: self.translator.provenance_of(tag) for tag in dict.fromkeys(self.tags)}

    def translate(self, lines: Sequence[Segment], on_batch: OnBatch | None) -> list[list[Translation]]:
        """Return the n-best translations of lines."""
        part_lists = self._divide(lines)
        rows = [(i, part) for i, parts in enumerate(part_lists) for part in parts]
        numbers = [
            self.line_numbers[i] + k * PART_STRIDE for i, parts in enumerate(part_lists) for k in range(len(parts))
        ]

        def report(done: int) -> None:
            if on_batch is not None:
                on_batch(done * len(lines) // len(rows))

        found = self._search_parts(
            self.translator,
            [(i, part.strip() if len(part_lists[i]) > 1 else part) for i, part in rows],
            numbers,
            report,
        )
        found = self._review(rows, found)
        by_line: dict[int, list[list[Translation]]] = {}
        for (i, _), n_best in zip(rows, found, strict=True):
            by_line.setdefault(i, []).append(n_best)
        return [
            join_n_best(line, part_lists[i], by_line[i], self.provenances[self.tags[i]].tgt_lang)
            for i, line in enumerate(lines)
        ]

    def _group_by_tag(self, lines: Collection[int]) -> dict[str | None, list[int]]:
        groups: dict[str | None, list[int]] = {}
        for i in lines:
            groups.setdefault(self.tags[i], []).append(i)
        return groups

    def _divide(self, lines: Sequence[Segment]) -> list[Sequence[Segment]]:
        """Return the parts of each line."""
        part_lists: list[Sequence[Segment]] = [()] * len(lines)
        for tag, rows in self._group_by_tag(range(len(lines))).items():
            divided = self.translator.make_divider(tag).divide([lines[i] for i in rows])
            for i, parts in zip(rows, divided, strict=True):
                part_lists[i] = parts
        return part_lists

    def _search_parts(
        self,
        translator: Translator,
        segments: Sequence[tuple[int, Segment]],
        numbers: Sequence[int],
        on_batch: OnBatch | None = None,
    ) -> list[list[Translation]]:
        """Translate segments, each with the index of its line."""
        lines = [i for i, _ in segments]
        return translator.search_segments(
            [segment for _, segment in segments],
            numbers,
            alignments=self.alignments,
            scores=self.scores,
            tags=[self.tags[i] for i in lines],
            on_batch=on_batch,
        )

    def _review(
        self, rows: Sequence[tuple[int, Segment]], n_best_lists: list[list[Translation]]
    ) -> list[list[Translation]]:
        """Review the first translation of each list, and put a better one before it if there is one."""
        translator, config, hooks = self.translator, self.translator.config, self.translator.hooks
        if hooks.make_policy is None:
            return n_best_lists
        reviewed = [*n_best_lists]
        faults_by_line: dict[int, tuple[list[Fault], list[Fault]]] = {}  # before and after the review
        for tag, lines in self._group_by_tag(dict.fromkeys(i for i, _ in rows)).items():
            provenance = self.provenances[tag]
            if (policy := hooks.make_policy(provenance, config)) is None:
                continue
            chosen, jobs = {*lines}, dict[int, Job]()
            for row, (i, segment) in enumerate(rows):
                if i in chosen and (faults := find_segment_faults(policy, segment, n_best_lists[row][0])):
                    jobs[row] = Job(i, segment, n_best_lists[row][0], faults)
            before = {row: job.faults for row, job in jobs.items()}
            count_tokens = partial(translator.count_tokens, tag=tag)
            review([*jobs.values()], policy, config, self._search_again, count_tokens, provenance.tgt_lang)
            for row, job in jobs.items():
                best = job.best if self.alignments else without_alignment(job.best)
                others = (each for each in n_best_lists[row] if each.text != best.text)
                reviewed[row] = [best, *others][: len(n_best_lists[row])]
                all_before, all_after = faults_by_line.setdefault(self.line_numbers[job.line], ([], []))
                all_before += before[row]
                all_after += job.faults
        if hooks.on_fault is not None:
            for number, (all_before, all_after) in faults_by_line.items():
                hooks.on_fault(number, all_before, all_after)
        return reviewed

    def _search_again(
        self, segments: Sequence[tuple[int, Segment]], options: DecodingChanges
    ) -> list[list[Translation]]:
        return self._search_parts(
            self.translator.with_options(options),
            [(i, segment.strip()) for i, segment in segments],
            [self.line_numbers[i] for i, _ in segments],
        )


def without_alignment(translation: Translation) -> Translation:
    """Return a translation without its word alignment."""
    return translation if translation.alignment is None else replace(translation, alignment=None)


def name_line(line_number: int) -> str:
    """Return the name of a line in messages, which is the same for all its parts."""
    return f"line {line_number % PART_STRIDE}"


def list_texts(name: str, texts: Iterable[TextT], types: type | UnionType) -> list[TextT]:
    """Return texts as a list, such as those of a column of a table.

    Raises `UserError` for a single text, whose letters would be translated one by one, and for an item of another type.
    """
    if isinstance(texts, str) or not hasattr(texts, "__iter__"):
        raise UserError(f"{name}: is {texts!r:.50}, of the type {type(texts).__name__}; pass a list of strings")
    listed = [*texts]
    for i, text in enumerate(listed):
        if not isinstance(text, types):
            raise UserError(f"{name}[{i}]: is {text!r:.50}, of the type {type(text).__name__}; pass strings")
        if has_lone_surrogate(text.surface if isinstance(text, Segment) else text or ""):
            raise UserError(f"{name}[{i}]: has half a character (a lone surrogate); repair or drop it")
    return listed


def resolve_line_numbers(n_texts: int, line_numbers: Sequence[int] | None) -> Sequence[int]:
    """Return the given line numbers, or 1, 2, ... Raises `UserError` if there is not one per text."""
    if line_numbers is not None and len(line_numbers) != n_texts:
        raise UserError(f"line_numbers: {len(line_numbers)} for {n_texts} texts; give one for each")
    return range(1, n_texts + 1) if line_numbers is None else [*line_numbers]


def choose_n_best(
    hypotheses: Sequence[Hypothesis], config: DecodingConfig, tokenizers: TokenizerPair
) -> list[Hypothesis]:
    """Return the best `n_best` hypotheses. Those of a beam have different texts, but samples may be equal."""
    if config.n_best == 1 or config.sample:
        return [*hypotheses[: config.n_best]]
    distinct: dict[str, Hypothesis] = {}
    for text, each in zip(tokenizers.tgt.decode([each.ids for each in hypotheses]), hypotheses, strict=True):
        distinct.setdefault(" ".join(text.split()), each)
    return [*distinct.values()][: config.n_best]


def realign_without_invalid_words(text: str, alignment: WordAlignment) -> WordAlignment:
    """Return the alignment of a translation after `leave_out_invalid_bytes`."""
    words = [i for i, word in enumerate(text.split()) if word.strip(REPLACEMENT)]
    kept = {old: new for new, old in enumerate(words)}
    return [(src, kept[tgt]) for src, tgt in alignment if tgt in kept]
