"""The models of the server: loading and reloading of runs and exported folders, and translation of texts.

Only this module of the server knows the translator and its types.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from transformer_mt.choices import SplitWhen
from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.decoding.engine import target_word_indices
from transformer_mt.decoding.line_splitting import LineTranslator, TranslatedLine, restore_spaces
from transformer_mt.decoding.translator import ModelProvenance, Translation, TruncatedSourceWarning, UnknownWordWarning
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import EXPORT, RunFolder
from transformer_mt.runs.records import CorruptFileError
from transformer_mt.system.files import read_bytes, refuse_special_files
from transformer_mt.system.log import log
from transformer_mt.tools.documents.document import Document, DocumentOptions
from transformer_mt.tools.documents.formats import adapt_translator, fill_document, make_lines, parse_document
from transformer_mt.tools.export.engine_choice import load_translator
from transformer_mt.tools.markup.elements import MarkedText
from transformer_mt.tools.markup.stages import make_stages
from transformer_mt.tools.robustness.guard import Guard
from transformer_mt.tools.serving.batching import BatchLine, BatchOptions
from transformer_mt.tools.serving.language_pairs import LanguagePair
from transformer_mt.tools.serving.schemas import TranslatedSegment, TranslateRequest

SourceLine = str | MarkedText


@dataclass(frozen=True)
class ModelOptions:
    """Options of `tmt serve` that apply to all models."""

    loading: Mapping[str, Any]
    """Checkpoint, device, threads and precision, as far as they are given."""
    decoding: Mapping[str, Any]
    """Keys of the section `decoding`."""
    split_sentences: SplitWhen = "auto"


@dataclass(frozen=True)
class LoadedModel:
    """One checkpoint in memory, with a translator for each of its language pairs."""

    version: str
    """Checkpoint with the checksum of its weights."""
    translators: Mapping[LanguagePair, LineTranslator]
    has_alignments: bool

    @property
    def max_alternatives(self) -> int:
        """Translations that the search can return beside the best one."""
        config = next(iter(self.translators.values())).text_translator.config
        return 0 if config.sample else config.beam - 1


class ServedModel:
    """A model that is replaced when its folder has a new checkpoint."""

    def __init__(self, path: Path, options: ModelOptions) -> None:
        """Load the model. Raises `UserError` if that is impossible."""
        self.path, self.options = path, options
        self._lock = threading.Lock()  # one reload at a time
        self._problem = ""  # of the last reload
        self._source = self._source_version()
        self.loaded = _load(path, options)

    @property
    def language_pairs(self) -> tuple[LanguagePair, ...]:
        """The language pairs of the model."""
        return tuple(self.loaded.translators)

    def translate(
        self, options: BatchOptions, lines: Sequence[BatchLine[SourceLine, TranslatedLine]]
    ) -> list[TranslatedLine]:
        """Translate a batch of lines with the checkpoint that is loaded now, each with up to `n_best` translations."""
        translator = self.loaded.translators[options.language_pair]
        text_translator = translator.text_translator.with_options({"n_best": options.n_best})
        if not options.scores:
            text_translator.engine = text_translator.engine.without_scores()
        translator = replace(translator, text_translator=text_translator)
        if options.is_document:
            translator = adapt_translator(translator)
        return translator.translate(
            [line.text for line in lines],
            [line.prefix for line in lines],
            [line.position + 1 for line in lines],
            alignments=options.alignments,
            is_cancelled=lambda index: lines[index].result.cancelled(),
        )

    def check_request(self, pair: LanguagePair, text: str, request: TranslateRequest) -> None:
        """Raise `UserError` if the model cannot do what a request asks for."""
        if not self.loaded.has_alignments:
            if request.alignment:
                raise UserError("alignment: a CTranslate2 model has none; serve the run itself")
            if request.format == "html":
                raise UserError("format: a CTranslate2 model cannot keep the tags of html; serve the run itself")
        if not request.prefix.strip():
            return
        translator = self.loaded.translators[pair]
        max_tokens = translator.chunker.max_tokens
        if translator.chunker.count_tokens([text])[0] > max_tokens:
            raise UserError("prefix: the text is too long to be translated at once; send one sentence")
        (ids,) = translator.text_translator.tokenizers.tgt.encode([request.prefix])
        if len(ids) > 2 * max_tokens:  # a translation may be longer than its source
            raise UserError(f"prefix: {len(ids):,} tokens; at most {2 * max_tokens:,} are accepted")

    def make_segments(
        self, pair: LanguagePair, lines: Sequence[TranslatedLine], *, confidence: bool
    ) -> list[TranslatedSegment]:
        """Return each chunk of the lines of a text with details of its best translation."""
        tokenizer = self.loaded.translators[pair].text_translator.tokenizers.tgt
        segments: list[TranslatedSegment] = []
        for number, line in enumerate(lines):
            best = [n_best[0] for n_best in line.translations]
            targets = restore_spaces(line.chunk_surfaces, [each.text for each in best], line.chunker.tgt_lang)
            for i, (source, translation, target) in enumerate(zip(line.chunk_surfaces, best, targets, strict=True)):
                segment = TranslatedSegment(
                    source=source,
                    target=f"\n{target}" if number and not i else target,
                    alignment=translation.alignment,
                    probability=_round_probability(translation.score_per_token) if confidence else None,
                    words=_word_probabilities(tokenizer, translation) if confidence else None,
                )
                segments.append(segment)
        return segments

    def reload(self) -> bool:
        """Load the folder again if its checkpoint has changed. Return whether it had.

        The old checkpoint stays if the new one cannot be read, or has other language pairs. The reason is logged, but
        not again while it stays the same.
        """
        with self._lock:
            try:
                source = self._source_version()
                loaded = self.loaded if source == self._source else _load(self.path, self.options)
                if [*loaded.translators] != [*self.loaded.translators]:
                    raise UserError(f"{self.path} has other language pairs now; restart the server")
            except (UserError, OSError, RuntimeError) as error:  # RuntimeError: no memory for both models
                if str(error) != self._problem:
                    log(f"tmt: not reloaded: {error}")
                self._problem = str(error)
                return False
            is_new = loaded is not self.loaded
            self._source, self.loaded, self._problem = source, loaded, ""
        if is_new:
            log(f"tmt: reloaded {self.path}: {loaded.version}")
        return is_new

    def _source_version(self) -> str:
        """Return a text that changes when the folder has another checkpoint."""
        if not RunFolder(self.path).exists() and (self.path / EXPORT).exists():
            refuse_special_files(self.path)
            return sha256(read_bytes(self.path / EXPORT)).hexdigest()
        try:
            run = RunFolder.open(self.path)
            info = run.find_checkpoint(self.options.loading.get("checkpoint", "best"))
        except CorruptFileError as error:
            raise UserError(str(error)) from None
        return f"{info.step} {sorted((name, file.sha256) for name, file in info.files.items())}"


@dataclass(frozen=True)
class SourceText:
    """A text of a request, divided into lines, or into the segments of a page."""

    text: str
    lines: Sequence[SourceLine]
    document: Document | None = None

    @classmethod
    def parse(cls, text: str, request: TranslateRequest) -> SourceText:
        """Divide a text of a request."""
        if request.format == "html":
            document = parse_document(text, "html", DocumentOptions(request.target))
            return cls(text, make_lines(document), document)
        lines = (text.strip("\n") if request.prefix else text).split("\n")
        return cls(text, [line.removesuffix("\r") for line in lines])

    @property
    def visible(self) -> str:
        """The text without markup."""
        if self.document is None:
            return self.text
        return "\n".join(segment.source.text_only for segment in self.document.segments)

    @property
    def lengths(self) -> list[int]:
        """Characters of each line, with its elements."""
        return [len(line if isinstance(line, str) else line.surface) for line in self.lines]

    def join_n_best(self, translated: Sequence[TranslatedLine]) -> list[str]:
        """Return the different translations of the text, the best first."""
        n_best_lists = [[translation.text for translation in line.join()] for line in translated]
        texts: dict[str, None] = {}
        for rank in range(max(map(len, n_best_lists), default=1)):
            if self.document is None:
                texts["\n".join(n_best[min(rank, len(n_best) - 1)] for n_best in n_best_lists)] = None
            else:
                texts[fill_document(self.document, translated, rank)] = None
        return [*texts]


def _word_probabilities(tokenizer: Tokenizer, translation: Translation) -> list[float]:
    """Return the geometric mean of the token probabilities of each word, EOS left out."""
    ids = [tokenizer.backend.token_to_id(token) for token in translation.tokens]
    words = target_word_indices(tokenizer, [tokenizer.pad_id if i is None else i for i in ids])
    scores: list[list[float]] = [[] for _ in translation.text.split()]
    for word, score in zip(words, translation.token_scores, strict=False):
        if word < len(scores):
            scores[word].append(score)
    return [_round_probability(sum(word) / max(1, len(word))) for word in scores]


def _round_probability(log_probability: float) -> float:
    """Return a probability with four decimals; 0 if the model's output was NaN."""
    return 0.0 if math.isnan(log_probability) else round(min(1.0, math.exp(log_probability)), 4)


def load_models(paths: Sequence[Path], options: ModelOptions) -> list[ServedModel]:
    """Load the models of several folders. Raises `UserError` if two have the same language pair and tag."""
    for category in (TruncatedSourceWarning, UnknownWordWarning):  # they concern the text of a client
        warnings.simplefilter("ignore", category)
    models: list[ServedModel] = []
    for path in paths:
        model = ServedModel(path, options)
        for pair, other in iterate_language_pairs(models):
            if pair in model.language_pairs:
                reason = f"translates {pair}, as {other.path} does"
                raise UserError(f"{path}: {reason}; leave out one of them, or select a tag with --tag")
        models.append(model)
    return models


def _load(path: Path, options: ModelOptions) -> LoadedModel:
    if not RunFolder(path).exists() and (path / EXPORT).exists():
        return _load_ctranslate2(path, options)
    translator = load_translator(path, make_stages=make_stages, keeps_torch=True, **options.loading, **options.decoding)
    data, tag = translator.runs[0].data, translator.config.tag
    tags = [tag] if tag is not None else [*([] if data.needs_tag else [None]), *data.tags]
    translators: dict[LanguagePair, LineTranslator] = {}
    for tag in tags:
        tagged = translator.with_options({"tag": tag})
        provenance = ModelProvenance.of_translator(tagged)
        pair = LanguagePair(provenance.src_lang, provenance.tgt_lang, tag)
        translators[pair] = LineTranslator.make(
            tagged, provenance, options.split_sentences, review=Guard.make(provenance, tagged.config)
        )
    version = f"checkpoint {ModelProvenance.of_translator(translator).identity['checkpoint']}"
    return LoadedModel(version, translators, has_alignments=translator.engine.has_alignments)


def _load_ctranslate2(path: Path, options: ModelOptions) -> LoadedModel:
    if options.decoding.get("engine") == "torch":
        raise UserError(f"--engine torch: {path} is a model for CTranslate2; serve the run itself")
    try:
        from transformer_mt.tools.export import ctranslate2_engine
    except ImportError as error:
        raise UserError(f"{path}: CTranslate2 cannot be imported ({error}); pip install ctranslate2") from None
    translator = ctranslate2_engine.load_translator(path, **options.loading, **options.decoding)
    if translator.tokenizers.needs_tag and translator.config.tag is None:
        raise UserError(
            f"{path}: does not record the languages of its tags; choose one with --tag, or serve the run itself"
        )
    provenance = ctranslate2_engine.read_provenance(path, translator.precision)
    pair = LanguagePair(provenance.src_lang, provenance.tgt_lang, translator.config.tag)
    line_translator = LineTranslator.make(
        translator, provenance, options.split_sentences, review=Guard.make(provenance, translator.config)
    )
    version = f"checkpoint {provenance.identity['checkpoint']}"
    return LoadedModel(version, {pair: line_translator}, has_alignments=False)


def iterate_language_pairs(models: Sequence[ServedModel]) -> Iterator[tuple[LanguagePair, ServedModel]]:
    """Yield each language pair with its model."""
    for model in models:
        for pair in model.language_pairs:
            yield pair, model
