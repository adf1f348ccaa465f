"""The translator of a run folder: tokenizers, an engine that searches, and stages that change the texts.

A text goes through the stages and the tokenizer to the engine, in batches of similar length, and its translation back.
"""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from transformer_mt.data import letter_case
from transformer_mt.data.batch_plan import batch_by_length
from transformer_mt.data.text_files import has_letters
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import Constraint, Engine, Hypothesis, IsCancelled, LoadedRun, WordAlignment
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.records import TrainingLengths
from transformer_mt.system.device import ResolvedPrecision, configure_process, resolve_machine

if TYPE_CHECKING:
    from transformer_mt.decoding.engine import TorchEngine
    from transformer_mt.model.transformer import Transformer

OnBatch = Callable[[int], None]
"""Called after each batch with the number of texts that are translated."""
_WORD = re.compile(r"\S+")
REPLACEMENT = "\ufffd"  # what a byte that is no part of valid UTF-8 decodes to
NOT_SEARCHED = Hypothesis([], [], finished=True)  # of a text without letters, which is not searched but copied
CHUNK_STRIDE = 1 << 32
"""Difference of the line numbers of consecutive chunks of a line, above any line number.

So chunks of a line have different random samples.
"""


class UnknownWordWarning(UserWarning):
    """A word of a prefix is not in the vocabulary."""


class TruncatedSourceWarning(UserWarning):
    """A source was longer than `decoding.max_source_length` or than the model's learned positions."""


class UnscoredPairWarning(UserWarning):
    """A pair to be scored was longer than the model can read."""


@dataclass(frozen=True)
class Translation:
    """One translation of a text."""

    text: str
    score: float  # natural logarithm of its probability
    tokens: list[str]
    token_scores: list[float]  # of each token, and of EOS if it was found
    finished: bool  # False: cut at the maximum length
    alignment: WordAlignment | None = None  # None unless it was requested
    marked: Any = None  # set by a stage: the text with its protected elements; None if it has none
    from_memory: bool = False  # taken from a translation memory, without a score

    @property
    def score_per_token(self) -> float:
        """Mean score of the tokens, EOS included; 0 for the empty translation of a blank line."""
        return self.score / max(1, len(self.token_scores))


class TextStage:
    """Changes texts before their translation, and the translations. It is created for one set of options.

    The state is what a stage knows about one text. The default methods change nothing, and the state is the text.
    """

    alignment_refusal = ""  # the message for a request of alignments that the stage needs itself

    def prepare(self, text: Any) -> tuple[Any, Any]:
        """Return the text for the next stage, or for the model after the last one, and the state."""
        return text, text

    def prepare_prefix(self, prefix: str, state: Any) -> str:
        """Return the prefix of a translation."""
        return prefix

    def needs_alignment(self, state: Any) -> bool:
        """Return whether `finish` needs the word alignment of the translations."""
        return False

    def constraint(self, state: Any, n_tokens: int, line_number: int) -> Constraint | None:
        """Return what each translation must contain, in at most `n_tokens` tokens; None: nothing."""
        return None

    def finish(self, translation: Translation, state: Any) -> Translation:
        """Return the final translation of a text."""
        return translation

    def wrap_chunker(self, chunker: Any) -> Any:
        """Return a chunker of lines, which may know more about the lines than a given one."""
        return chunker


@dataclass
class CaseState:
    """How to restore the case of a text."""

    restore: Callable[[str, str], str] | None = None
    """Restores the case of the whole text."""
    capitals: Mapping[int, str] = field(default_factory=dict[int, str])
    """Lower-cased source words by their index. Their translations are written in capitals."""
    prefix: str = ""
    """Prefix of the translation, which stays as it is."""


class CaseStage(TextStage):
    """Translates text in capitals or title case in sentence case, and writes its translation in that case.

    Words in capitals are other tokens than the words that the model knows, and most are split into letters. A text that
    has no fewer tokens in sentence case, such as "USA", may be known, and does not change. In a text with some words in
    capitals, the translations of these words are found by word alignment. Without it, only names that stay the same
    become capitals again.
    """

    def __init__(self, tokenizers: TokenizerPair, src_lang: str, tgt_lang: str, *, has_alignments: bool = True) -> None:
        self.tokenizers, self.src_lang, self.tgt_lang = tokenizers, src_lang, tgt_lang
        self.has_alignments = has_alignments

    def prepare(self, text: str) -> tuple[str, CaseState]:
        """Change words in capitals or title case to sentence case."""
        restore = letter_case.find_case(text)
        if restore is not None:
            changed = letter_case.to_sentence_case(text, self.src_lang)
            ids, changed_ids = self.tokenizers.src.encode([text, changed])
            if len(changed_ids) < len(ids):
                return changed, CaseState(restore)
        elif capitals := letter_case.find_capital_words(text):
            words = text.split()
            changed = [*words]
            for i in capitals:
                changed[i] = self._find_known_form(words[i], is_first=i == 0)
            if changed != words:
                return " ".join(changed), CaseState(capitals={i: words[i].lower() for i in capitals})
        return text, CaseState()

    def wrap_chunker(self, chunker: Any) -> Any:
        """Let it count the tokens of a text in the case in which the model reads it."""

        def count_tokens(texts: Sequence[str]) -> list[int]:
            return chunker.count_tokens([self.prepare(text)[0] for text in texts])

        return replace(chunker, count_tokens=count_tokens)

    def _find_known_form(self, word: str, *, is_first: bool) -> str:
        """Return a word in capitals, in small letters or with a capital: the first form with the fewest tokens."""
        lower = letter_case.to_lower_case(word, self.src_lang)
        title = letter_case.to_title_case(lower, self.src_lang)
        forms = [word, title, lower] if is_first else [word, lower, title]
        counts = map(len, self.tokenizers.src.encode(forms))
        return min(zip(counts, forms, strict=True), key=lambda pair: pair[0])[1]

    def needs_alignment(self, state: CaseState) -> bool:
        """Return whether the text has some words in capitals, and they can be aligned."""
        return self.has_alignments and bool(state.capitals)

    def prepare_prefix(self, prefix: str, state: CaseState) -> str:
        """Return the prefix of a translation, in sentence case if it has the case of the text."""
        if state.restore is not None and state.restore(prefix, self.tgt_lang) == prefix:
            return letter_case.to_sentence_case(prefix, self.tgt_lang)
        state.prefix = prefix
        return prefix

    def finish(self, translation: Translation, state: CaseState) -> Translation:
        """Restore the case of the text."""
        if state.capitals and not state.prefix:
            targets = {target for source, target in translation.alignment or () if source in state.capitals}
            if translation.alignment is None:
                names = {*state.capitals.values()}
                targets = {i for i, word in enumerate(translation.text.split()) if word.lower() in names}
            numbers = count()
            text = _WORD.sub(
                lambda match: (
                    letter_case.to_upper_case(match[0], self.tgt_lang) if next(numbers) in targets else match[0]
                ),
                translation.text,
            )
            return replace(translation, text=text)
        if state.restore is None:
            return translation
        n_kept = len(state.prefix)
        restored = state.restore(translation.text[n_kept:], self.tgt_lang)
        return replace(translation, text=translation.text[:n_kept] + restored)


MakeStages = Callable[[DecodingConfig, TokenizerPair], Sequence[TextStage]]
"""Returns the stages for some options, in the order in which texts go through them."""


@dataclass(frozen=True)
class _PreparedText:
    """A text for the model, and the states of the stages that it went through."""

    sentence: str
    states: list[tuple[TextStage, Any]]

    @classmethod
    def make(cls, text: Any, stages: Sequence[TextStage]) -> _PreparedText:
        """Send a text through the stages."""
        states: list[tuple[TextStage, Any]] = []
        for stage in stages:
            text, state = stage.prepare(text)
            states.append((stage, state))
        return cls(text, states)

    def prefix(self, prefix: str) -> str:
        """Send the prefix of a translation through the stages."""
        for stage, state in self.states:
            prefix = stage.prepare_prefix(prefix, state)
        return prefix


class Translator:
    """A model, or an ensemble, with its tokenizers. Several threads may use one translator at the same time.

    >>> Translator.load("runs/quickstart").translate(["The old dog sleeps."])
    ['Der alte Hund schläft.']
    """

    def __init__(
        self,
        engine: Engine,
        tokenizers: TokenizerPair,
        config: DecodingConfig,
        runs: Sequence[LoadedRun] = (),
        make_stages: MakeStages | None = None,
    ) -> None:
        """Translate with an engine whose models were loaded from `runs`."""
        self.engine, self.tokenizers, self.config = engine, tokenizers, config
        self.runs, self.make_stages = runs, make_stages

    @classmethod
    def from_model(
        cls, model: Transformer, tokenizers: TokenizerPair, config: DecodingConfig, precision: ResolvedPrecision
    ) -> Translator:
        """Return a translator with a copy of a model, which may continue to train."""
        from transformer_mt.decoding.engine import TorchEngine, prepare_for_inference

        return cls(
            TorchEngine([prepare_for_inference(copy.deepcopy(model), precision)], tokenizers), tokenizers, config
        )

    @classmethod
    def load(
        cls,
        run: str | Path,
        checkpoint: str = "best",
        device: str = "auto",
        threads: int | str = "auto",
        precision: str = "auto",
        *,
        ensemble: str | Path | Sequence[str | Path] = (),
        few_texts: bool = False,
        make_stages: MakeStages | None = None,
        **options: Any,
    ) -> Translator:
        """Load a checkpoint of a run folder with PyTorch. The training data is not needed.

        Args:
            run: The run folder.
            checkpoint: best, last, or the number of a step.
            device: auto, cpu, cuda, cuda:N or mps.
            threads: CPU threads, or auto.
            precision: Of the matrix products: fp32, bf16, fp16, or auto (the fastest one).
            ensemble: Further runs with the same vocabulary, loaded at the same checkpoint. The first run's settings
                apply.
            few_texts: Whether precision auto is fp32 on a CPU, whose bf16 products are faster only in batches.
            make_stages: Makes the stages for options that need some, such as a glossary.
            **options: Keys of the section `decoding`, as for `translate`.

        Raises:
            UserError: If a checkpoint cannot be read, the runs do not fit together, or `engine` is ctranslate2.
        """
        if options.get("engine") == "ctranslate2":
            raise UserError("engine: ctranslate2: pass it to transformer_mt.tools.export.engine_choice.load_translator")
        from transformer_mt.decoding.engine import TorchEngine, load_models, prepare_for_inference

        others = [ensemble] if isinstance(ensemble, str | Path) else ensemble
        folders = [RunFolder.open(path) for path in (run, *others)]
        config = folders[0].read_section("decoding", DecodingConfig).with_options(options)
        machine = resolve_machine(device, precision, threads, few_texts=few_texts)
        configure_process(machine)
        loaded = load_models(folders, checkpoint)
        models = [prepare_for_inference(model.to(machine.device), machine.precision) for _, model in loaded]
        runs = [run for run, _ in loaded]
        tokenizers = runs[0].tokenizers
        return cls(TorchEngine(models, tokenizers), tokenizers, config, runs, make_stages)

    @property
    def model(self) -> Transformer:
        """The only model. Raises `UserError` for an ensemble."""
        models = self.torch_engine.models
        if len(models) != 1:
            raise UserError(f"one model is needed, and this is an ensemble of {len(models)}")
        return models[0]

    @property
    def torch_engine(self) -> TorchEngine:
        """The engine, if it is one of PyTorch. Raises `UserError` for another one."""
        from transformer_mt.decoding.engine import TorchEngine

        if not isinstance(self.engine, TorchEngine):
            raise UserError("the engine is not PyTorch; load the run with engine: torch")
        return self.engine

    @property
    def precision(self) -> str:
        """Precision of the matrix products."""
        return self.engine.precision

    @property
    def max_positions(self) -> int:
        """Length of the longest sequence that the model can read."""
        return self.engine.max_positions

    @cached_property
    def stages(self) -> Sequence[TextStage]:
        """The stages for the options. Raises `UserError` if a glossary is invalid, or `make_stages` is missing."""
        return [*self._make_caller_stages(), *self._make_case_stages()]

    def _make_case_stages(self) -> Sequence[TextStage]:
        """Return the stage that restores letter case. It comes last, because it changes the text for the model."""
        if not self.config.restore_case:
            return []
        languages = (self.runs[0].data.src_lang, self.runs[0].data.tgt_lang) if self.runs else ("", "")
        return [CaseStage(self.tokenizers, *languages, has_alignments=self.engine.has_alignments)]

    def _make_caller_stages(self) -> Sequence[TextStage]:
        if not self.config.needs_stages:
            return ()
        if self.make_stages is None:
            raise UserError(
                f"decoding.{'glossary' if self.config.markup == 'none' else 'markup'}: needs text stages; from Python, "
                "pass make_stages to Translator.load, as docs/api.md says"
            )
        return self.make_stages(self.config, self.tokenizers)

    def with_options(self, options: dict[str, Any]) -> Self:
        """Return a translator with other options that shares the model. Raises `UserError` for invalid options."""
        twin = copy.copy(self)
        twin.config = self.config.with_options(options)
        vars(twin).pop("stages", None)
        return twin

    @property
    def max_source_tokens(self) -> int:
        """Maximum tokens of a source, without EOS, BOS and the tag."""
        return min(self.config.max_source_length, self.max_positions - self.tokenizers.n_source_controls)

    def encode(
        self, texts: Sequence[str], line_numbers: Sequence[int], tags: Sequence[str | None] | None = None
    ) -> list[list[int]]:
        """Return the ids of texts, after those of their tags. Long ones are cut, with a warning that names the line.

        `tags` has the tag of each text; None: all have `decoding.tag`.
        """
        sources, limit = self.tokenizers.src.encode(texts), self.max_source_tokens
        for number, ids in zip(line_numbers, sources, strict=True):
            if len(ids) > limit:
                message = f"{name_line(number)} has {len(ids)} tokens and was cut to {limit}"
                warnings.warn(TruncatedSourceWarning(message), stacklevel=3)
                del ids[limit:]
        first = self.tag_ids(tags, len(sources))
        return [tag + ids if ids else ids for tag, ids in zip(first, sources, strict=True)]

    def tag_ids(self, tags: Sequence[str | None] | None, n_texts: int) -> list[list[int]]:
        """Return the ids before each of some texts: that of its tag, or none.

        Raises:
            UserError: The model does not know a tag, or needs one; or there is not one tag per text.
        """
        chosen = [self.config.tag] * n_texts if tags is None else tags
        if isinstance(chosen, str) or len(chosen) != n_texts:
            raise UserError(f"tags: give a list with a tag, or None, for each of {n_texts} texts")
        if self.tokenizers.needs_tag and None in chosen:
            known = ", ".join(self.tokenizers.src.tags)
            raise UserError(f"the model needs a tag for each source: pass --tag (decoding.tag), one of {known}")
        return [[] if tag is None else [self.tokenizers.src.tag_id(tag)] for tag in chosen]

    def translate(
        self,
        texts: Sequence[str],
        prefixes: Sequence[str] | None = None,
        line_numbers: Sequence[int] | None = None,
        *,
        tags: Sequence[str | None] | None = None,
        on_batch: OnBatch | None = None,
        **options: Any,
    ) -> list[str]:
        """Return one translation per text, in order: "" if the text is blank, also after normalisation.

        Each translation starts with its prefix, if prefixes are given. `line_numbers` are for warnings and for random
        sampling, by default 1, 2, ... Options are keys of the section `decoding`, such as `beam=1`. A text longer than
        `max_source_length` or the model's positions is cut, with a `TruncatedSourceWarning`. `on_batch` is called after
        each batch with the number of translated texts.
        """
        if options or self.config.n_best != 1:  # otherwise their validation would take 5 % of a small model's time
            options = {**options, "n_best": 1}
        n_best_lists = self.n_best(texts, prefixes, line_numbers, tags=tags, on_batch=on_batch, **options)
        return [best.text for best, *_ in n_best_lists]

    def n_best(
        self,
        texts: Sequence[Any],
        prefixes: Sequence[str] | None = None,
        line_numbers: Sequence[int] | None = None,
        *,
        alignments: bool = False,
        tags: Sequence[str | None] | None = None,
        on_batch: OnBatch | None = None,
        is_cancelled: IsCancelled | None = None,
        **options: Any,
    ) -> list[list[Translation]]:
        """Return up to `n_best` translations of each text, the best first, but at least one.

        Those of a beam search have different texts. There may be fewer than `n_best`, because hypotheses with the same
        text are merged. A text without letters is its own translation, unless it has a prefix or a glossary term.

        `tags` has the tag of each text; by default it is `decoding.tag`. `is_cancelled` takes the index of a text. Once
        it is true, the translations of this text are not needed, and its search ends soon.
        """
        if options:
            twin = self.with_options(options)
            return twin.n_best(
                texts,
                prefixes,
                line_numbers,
                alignments=alignments,
                tags=tags,
                on_batch=on_batch,
                is_cancelled=is_cancelled,
            )
        check_lists(texts=texts, **({} if prefixes is None else {"prefixes": prefixes}))
        line_numbers = resolve_line_numbers(len(texts), line_numbers)
        prepared = [_PreparedText.make(text, self.stages) for text in texts]
        sources = self.encode([each.sentence for each in prepared], line_numbers, tags)
        prefix_ids = None
        if prefixes is not None:  # trailing white space belongs to the token of the next word
            pairs = zip(prepared, prefixes, strict=True)
            prefix_ids = self._encode_prefixes([each.prefix(prefix.rstrip()) for each, prefix in pairs], line_numbers)
        hypotheses = self._search(prepared, sources, line_numbers, prefix_ids, on_batch, is_cancelled)
        aligned = self._align(prepared, sources, hypotheses, alignments)
        return self._finish(prepared, sources, hypotheses, aligned, keeps_alignments=alignments)

    def _encode_prefixes(self, prefixes: Sequence[str], line_numbers: Sequence[int]) -> list[list[int]]:
        """Return the ids of the prefixes of translations. Raises `UserError` if one fills the model's positions."""
        encoded = self.tokenizers.tgt.encode(prefixes)
        for number, ids in zip(line_numbers, encoded, strict=True):
            line = name_line(number)
            if self.tokenizers.tgt.unk_id in ids:
                message = f"{line}: the vocabulary lacks a word of the prefix; it becomes the unknown token"
                warnings.warn(UnknownWordWarning(message), stacklevel=4)
            if len(ids) >= self.max_positions:
                raise UserError(
                    f"{line}: the prefix has {len(ids)} tokens, and the model reads {self.max_positions}: shorten it"
                )
        return encoded

    def _make_constraints(
        self, prepared: Sequence[_PreparedText], line_numbers: Sequence[int], prefixes: list[list[int]] | None
    ) -> list[Constraint | None]:
        """Return what each translation must contain. At most one stage constrains a text."""
        constraints: list[Constraint | None] = []
        for i, each in enumerate(prepared):
            n_tokens = self.max_positions - 1 - (0 if prefixes is None else len(prefixes[i]))
            found = (stage.constraint(state, n_tokens, line_numbers[i]) for stage, state in each.states)
            constraints.append(next((one for one in found if one is not None), None))
        return constraints

    def _search(
        self,
        prepared: Sequence[_PreparedText],
        sources: list[list[int]],
        line_numbers: Sequence[int],
        prefixes: list[list[int]] | None,
        on_batch: OnBatch | None,
        is_cancelled: IsCancelled | None,
    ) -> list[list[Hypothesis]]:
        """Translate the sources of texts that are not copied, in batches of similar length.

        A source whose translations lack a term is translated again, with its terms.
        """
        hypotheses = [[NOT_SEARCHED] for _ in prepared]
        constraints = self._make_constraints(prepared, line_numbers, prefixes)
        lengths = {
            i: len(sources[i])
            for i, each in enumerate(prepared)
            if sources[i] and (has_letters(each.sentence) or constraints[i] or (prefixes and prefixes[i]))
        }
        n_done = len(prepared) - len(lengths)
        lengths_of_rejected: dict[int, int] = {}
        for is_constrained in (False, True):
            rows = lengths_of_rejected if is_constrained else lengths
            if not rows:
                continue
            config = self.config.with_term_beam() if is_constrained else self.config
            for batch in batch_by_length(rows, config.batch_tokens // config.n_beams):
                if is_cancelled is not None:
                    batch = [i for i in batch if not is_cancelled(i)]
                if not batch:
                    continue
                n_best_lists = self.engine.search(
                    [sources[i] for i in batch],
                    config,
                    [line_numbers[i] for i in batch],
                    None if prefixes is None else [prefixes[i] for i in batch],
                    None if is_cancelled is None else lambda row, batch=batch: is_cancelled(batch[row]),
                    [each for i in batch if (each := constraints[i]) is not None] if is_constrained else None,
                )
                for i, n_best in zip(batch, n_best_lists, strict=True):
                    hypotheses[i] = choose_n_best(n_best, self.config, self.tokenizers)
                    constraint = constraints[i]
                    if (
                        constraint is None
                        or is_constrained
                        or all(constraint.accepts(each.ids) for each in hypotheses[i])
                    ):
                        n_done += 1
                    else:
                        lengths_of_rejected[i] = lengths[i]
                if on_batch is not None:
                    on_batch(n_done)
        return hypotheses

    def _align(
        self,
        prepared: Sequence[_PreparedText],
        sources: list[list[int]],
        hypotheses: list[list[Hypothesis]],
        is_requested: bool,
    ) -> dict[int, list[WordAlignment]]:
        """Return the word alignments of the hypotheses of the texts that need them, by their index."""
        rows: list[int] = []
        for i, each in enumerate(prepared):
            needing = next((stage for stage, state in each.states if stage.needs_alignment(state)), None)
            if is_requested and needing is not None and needing.alignment_refusal:
                raise UserError(needing.alignment_refusal)
            if is_requested or needing is not None:
                rows.append(i)
        if not rows:
            return {}
        sentences = [prepared[i].sentence for i in rows]
        layer = self.config.alignment_layer
        found = iter(self.engine.align(sentences, [sources[i] for i in rows], [hypotheses[i] for i in rows], layer))
        return {i: [next(found) for _ in hypotheses[i]] for i in rows}

    def _finish(
        self,
        prepared: Sequence[_PreparedText],
        sources: Sequence[Sequence[int]],
        hypotheses: Sequence[Sequence[Hypothesis]],
        aligned: Mapping[int, Sequence[WordAlignment]],
        *,
        keeps_alignments: bool,
    ) -> list[list[Translation]]:
        """Return the n-best translations of each text. A line break in a translation would split the output line."""
        tokenizer = self.tokenizers.tgt
        texts = iter(tokenizer.decode([each.ids for n_best in hypotheses for each in n_best]))
        n_best_lists: list[list[Translation]] = []
        for i, (each, n_best) in enumerate(zip(prepared, hypotheses, strict=True)):
            n_best_lists.append([])
            for hypothesis, alignment in zip(n_best, aligned.get(i, [None] * len(n_best)), strict=True):
                text, tokens = next(texts), tokenizer.tokens(hypothesis.ids)
                if hypothesis is NOT_SEARCHED and sources[i] and each.sentence.strip():
                    text = each.sentence
                    alignment = None if alignment is None else [(word, word) for word in range(len(text.split()))]
                elif REPLACEMENT in text:
                    text, alignment = leave_out_invalid_bytes(text, alignment)
                text = text.replace("\n", " ")
                score, log_probs, finished = hypothesis.score, hypothesis.log_probs, hypothesis.finished
                translation = Translation(text, score, tokens, log_probs, finished, alignment)
                for stage, state in reversed(each.states):
                    translation = stage.finish(translation, state)
                if not keeps_alignments and translation.alignment is not None:
                    translation = replace(translation, alignment=None)
                n_best_lists[-1].append(translation)
        return n_best_lists

    def score(
        self, sources: Sequence[str], targets: Sequence[str], line_numbers: Sequence[int] | None = None
    ) -> list[Translation]:
        """Return each target as a translation of its source, with the log-probabilities of the model.

        The score is minus infinity if a side is blank, also after normalisation. It is minus infinity, with an
        `UnscoredPairWarning`, if a side is longer than `max_source_length` or the model's positions. `line_numbers` are
        for warnings, by default 1, 2, ...
        """
        check_lists(sources=sources, targets=targets)
        line_numbers = resolve_line_numbers(len(sources), line_numbers)
        src, tgt = self.tokenizers.src.encode(sources), self.tokenizers.tgt.encode(targets)
        first = self.tag_ids(None, 1)[0]
        scored = [
            i
            for i, number in enumerate(line_numbers)
            if sources[i].strip() and targets[i].strip() and src[i] and tgt[i] and self._fits(number, src[i], tgt[i])
        ]
        found = self.engine.score([first + src[i] for i in scored], [tgt[i] for i in scored], self.config.batch_tokens)
        log_probs = dict(zip(scored, found, strict=True))
        return [self._scored_target(text, tgt[i], log_probs.get(i)) for i, text in enumerate(targets)]

    def _fits(self, line_number: int, src: list[int], tgt: list[int]) -> bool:
        """Return whether the model can read a pair; warn otherwise."""
        limits = self.max_source_tokens, min(self.config.max_source_length, self.max_positions - 1)
        if len(src) <= limits[0] and len(tgt) <= limits[1]:
            return True
        sizes, maximum = (f"{one} source and {other} target tokens" for one, other in ((len(src), len(tgt)), limits))
        message = f"line {line_number} has {sizes}, and at most {maximum} are scored"
        warnings.warn(UnscoredPairWarning(message), stacklevel=3)
        return False

    def _scored_target(self, text: str, ids: list[int], log_probs: list[float] | None) -> Translation:
        """Return a given target with its log-probabilities; None and NaN become a score of minus infinity."""
        tokens = self.tokenizers.tgt.tokens(ids)
        if log_probs is None or math.isnan(sum(log_probs)):
            return Translation(text, -math.inf, tokens, [], finished=True)
        return Translation(text, sum(log_probs), tokens, log_probs, finished=True)


def name_line(line_number: int) -> str:
    """Return the name of a line in messages, which is the same for all its chunks."""
    return f"line {line_number % CHUNK_STRIDE}"


def check_lists(**arguments: object) -> None:
    """Check the lists of texts that a caller gives, by the names of the parameters.

    Raises `UserError` for a value that is not a list of texts, and for lists of different lengths. A string is not a
    list, because its letters would be translated one by one.
    """
    lengths: dict[str, int] = {}
    for name, texts in arguments.items():
        if not isinstance(texts, Collection) or isinstance(texts, str | Mapping | Set):
            raise UserError(f"{name} is of type {type(cast(object, texts)).__name__}: give a list of texts")
        for i, text in enumerate(cast(Collection[object], texts)):
            if not isinstance(text, str) and not (name == "texts" and hasattr(text, "surface")):
                raise UserError(f"{name}[{i}] is of type {type(text).__name__}: give a text")
        lengths[name] = len(cast(Collection[object], texts))
    if len({*lengths.values()}) > 1:
        counts = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise UserError(f"{counts}; give one for each")


def resolve_line_numbers(n_texts: int, line_numbers: Sequence[int] | None) -> Sequence[int]:
    """Return the given line numbers, or 1, 2, ... Raises `UserError` if there is not one per text."""
    if line_numbers is not None and len(line_numbers) != n_texts:
        raise UserError(f"line_numbers: {len(line_numbers)} for {n_texts} texts; give one for each")
    return range(1, n_texts + 1) if line_numbers is None else line_numbers


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


def leave_out_invalid_bytes(text: str, alignment: WordAlignment | None) -> tuple[str, WordAlignment | None]:
    """Return a translation without its replacement characters: byte tokens that the model joined to no valid UTF-8."""
    words = [word.replace(REPLACEMENT, "") for word in text.split()]
    kept = {old: new for new, old in enumerate(i for i, word in enumerate(words) if word)}
    if alignment is not None:
        alignment = [(src, kept[tgt]) for src, tgt in alignment if tgt in kept]
    return " ".join(word for word in words if word), alignment


@dataclass(frozen=True)
class ModelProvenance:
    """Identity of a loaded model, and facts about its training data."""

    identity: dict[str, str]
    """Names and checksums. Partial output is resumed only by a model with the same identity."""
    src_lang: str
    tgt_lang: str
    max_length: int
    """Longest training sequence in tokens, including EOS."""
    lengths: TrainingLengths | None = None
    """Lengths of the training sources; None if they were not recorded."""
    src_langs: tuple[str, ...] = ()
    """All source languages, if there are several."""

    @classmethod
    def of_translator(cls, translator: Translator) -> ModelProvenance:
        """Describe the loaded checkpoints and the precision of the matrix products. The languages are of the tag."""
        runs, data, tag = translator.runs, translator.runs[0].data, translator.config.tag
        is_tag_missing = tag is None and data.needs_tag  # the translation will be refused
        src_lang, tgt_lang = (data.src_lang, data.tgt_lang) if is_tag_missing else data.languages_of(tag)
        identity = {
            "--engine": translator.engine.name,
            "run": ", ".join(run.folder.path.resolve().name for run in runs),
            "checkpoint": ", ".join([*(f"{one.step} ({one.weights_hash})" for one in runs), translator.precision]),
        }
        lengths = min((run.lengths for run in runs if run.lengths), key=lambda one: one.tokens.p999, default=None)
        src_langs = data.source_languages_of(tag)
        return cls(
            identity,
            src_lang,
            tgt_lang,
            min(run.data.max_length for run in runs),
            lengths,
            src_langs if len(src_langs) > 1 else (),
        )

    @property
    def longest_source(self) -> int:
        """Length of a source, in tokens, that the training pairs rarely exceed."""
        longest = self.max_length - 1  # without EOS
        return longest if self.lengths is None else min(longest, self.lengths.tokens.p999)
