"""The service that the HTTP routes call: it finds the model, translates within the limits, and detects languages."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from transformer_mt.config.yaml_loader import has_lone_surrogate
from transformer_mt.data.languages import primary_language
from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.decoding.engine import target_word_indices
from transformer_mt.decoding.segments import Part, Translation
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.system.log import log
from transformer_mt.tools.documents.document import Document, DocumentOptions
from transformer_mt.tools.documents.formats import fill_document, make_segments, parse_document
from transformer_mt.tools.languages.detection import LANGUAGE_THRESHOLD, LanguageDetector, language_name
from transformer_mt.tools.markup.elements import MarkedText
from transformer_mt.tools.serving.batching import (
    BatchingWorker,
    BatchOptions,
    LanguagePair,
    NBest,
    TranslationJob,
    count_characters,
    find_language_pair,
    is_same_language,
)
from transformer_mt.tools.serving.models import ServedModel, iterate_language_pairs
from transformer_mt.tools.serving.requests import (
    ApiError,
    ApiKeys,
    DetectedLanguage,
    Language,
    Limits,
    RequestSlots,
    ServedLanguagePair,
    TranslateAnswer,
    TranslatedSegment,
    TranslateRequest,
)

DETECTED_CHARACTERS = 2000  # of a text, for the detection of its language
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LINES = (1, 2, 4, 8, 16, 32, 64, 128)
T = TypeVar("T")


def describe_parts(
    sources: Sequence[str | MarkedText], lines: Sequence[NBest], tokenizer: Tokenizer, *, confidence: bool
) -> list[TranslatedSegment]:
    """Return each part of the lines of a text with details of its best translation."""
    segments: list[TranslatedSegment] = []
    for number, (line, (best, *_)) in enumerate(zip(sources, lines, strict=True)):
        whole = Part(line if isinstance(line, str) else line.surface, best.text, best)
        for i, part in enumerate(best.parts or (whole,)):
            translation = part.translation
            details: dict[str, Any] = {}
            if confidence:
                details["probability"] = _round_probability(translation.score_per_token)
                details["words"] = compute_word_probabilities(tokenizer, translation)
            target = f"\n{part.target}" if number and not i else part.target
            segments.append(
                TranslatedSegment(source=part.source, target=target, alignment=translation.alignment, **details)
            )
    return segments


def compute_word_probabilities(tokenizer: Tokenizer, translation: Translation) -> list[float]:
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


class Metrics:
    """Metrics of one server in the text format of Prometheus. Labels never contain text of users."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        count, measure = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self.requests = count("tmt_requests", "Requests by path and status", ("method", "path", "status"))
        self.seconds = measure("tmt_request_seconds", "Time of a request", ("path",), buckets=SECONDS)
        self.in_flight = Gauge("tmt_requests_in_flight", "Translations that run or wait", registry=self.registry)
        self.characters = count("tmt_source_characters", "Characters translated", ("language_pair",))
        self.cancelled = count("tmt_cancelled", "Translations given up", ("reason",))
        self.batch_lines = measure("tmt_batch_lines", "Lines of a batch", buckets=LINES)
        self.batch_requests = measure("tmt_batch_requests", "Texts of a batch", buckets=LINES)
        self.batch_seconds = measure("tmt_batch_seconds", "Time of a batch", buckets=SECONDS)
        self.reloads = count("tmt_reloads", "Checkpoints loaded while serving")

    def observe_batch(self, n_lines: int, n_requests: int, seconds: float) -> None:
        """Record a batch."""
        self.batch_lines.observe(n_lines)
        self.batch_requests.observe(n_requests)
        self.batch_seconds.observe(seconds)

    def render(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self.registry)


class ModelRoute(NamedTuple):
    """The language pair of a text, with the model and the thread that translate it."""

    language_pair: LanguagePair
    model: ServedModel
    worker: BatchingWorker

    @property
    def translator(self) -> Translator:
        """The translator of the language pair."""
        return self.model.loaded.translators[self.language_pair]


@dataclass(frozen=True)
class SourceText:
    """A text of a request, ready for its translation."""

    route: ModelRoute
    lines: Sequence[str | MarkedText]
    document: Document | None
    detected: DetectedLanguage | None
    unchanged: str | None = None  # the text, if it is in the target language already; then there are no lines

    def join_n_best(self, translated: Sequence[NBest]) -> list[str]:
        """Return the different translations of the text, the best first."""
        if self.unchanged is not None:
            return [self.unchanged]
        n_best_lists = [[translation.text for translation in n_best] for n_best in translated]
        texts: dict[str, None] = {}
        for rank in range(max(map(len, n_best_lists), default=1)):
            if self.document is None:
                texts["\n".join(n_best[min(rank, len(n_best) - 1)] for n_best in n_best_lists)] = None
            else:
                texts[fill_document(self.document, translated, rank)] = None
        return [*texts]


class TranslationService:
    """The models of the server, each with its worker thread."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: Limits,
        keys: ApiKeys | None = None,
        *,
        window: float = 0.003,
        max_batch_lines: int = 64,
        log_text: bool = False,
    ) -> None:
        self.limits, self.keys, self.log_text = limits, keys, log_text
        self.metrics = Metrics()
        self.slots = RequestSlots(limits.max_requests)
        self.metrics.in_flight.set_function(lambda: self.slots.n_taken)
        self.is_stopping = False
        self.models = models
        self._routes: dict[LanguagePair, ModelRoute] = {}
        self._workers: list[BatchingWorker] = []
        self._document_pool = ThreadPoolExecutor(1, "tmt-documents")  # so that documents do not delay plain text
        for model in models:
            worker = BatchingWorker(
                model.translate, window=window, max_lines=max_batch_lines, observe=self.metrics.observe_batch
            )
            self._workers.append(worker)
            self._routes |= {pair: ModelRoute(pair, model, worker) for pair in model.language_pairs}

    def close(self) -> None:
        """End the worker threads, after they have finished all jobs."""
        self._document_pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.stop()

    def reload(self) -> None:
        """Load new checkpoints. Requests continue with the old ones meanwhile."""
        for model in self.models:
            if model.reload():
                self.metrics.reloads.inc()

    def check_stopping(self) -> None:
        """Raise `ApiError` while the server stops."""
        if self.is_stopping:
            raise ApiError(503, "the server is stopping", {"Connection": "close", "Retry-After": "5"})

    def check_key(self, key: str | None) -> None:
        """Raise `ApiError` unless the key is valid, or the server has no keys."""
        if self.keys is not None:
            self.keys.check(key)

    # --- languages ----------------------------------------------------------------------------------------------------

    def languages(self) -> list[Language]:
        """Return the source languages, in the order of the models."""
        targets: dict[str, dict[str, None]] = {}
        for pair in self._routes:
            targets.setdefault(pair.source, {})[pair.target] = None
        return [Language(code=code, name=language_name(code), targets=[*known]) for code, known in targets.items()]

    def language_pairs(self) -> list[ServedLanguagePair]:
        """Return the language pairs with their models."""
        return [
            ServedLanguagePair(
                source=pair.source,
                target=pair.target,
                tag=pair.tag,
                model=model.path.resolve().name,
                version=model.loaded.version,
                alignments=model.loaded.has_alignments,
                maxAlternatives=model.loaded.max_alternatives,
            )
            for pair, model in iterate_language_pairs(self.models)
        ]

    def detect(self, text: str) -> list[DetectedLanguage]:
        """Return the likely languages of a text, the most likely first."""
        ranking = LanguageDetector.load().rank(text[:DETECTED_CHARACTERS])
        likely = [(code, round(100 * probability, 1)) for code, probability in ranking[:5]]
        return [DetectedLanguage(language=code, confidence=value) for code, value in likely if value >= 1]

    def detect_source(self, text: str, target: str) -> DetectedLanguage:
        """Return the most likely language of a text among those that a model translates to `target`."""
        sources = [pair.source for pair in self._routes if is_same_language(target, pair.target)]
        if not sources:
            raise ApiError(400, f"target: no model translates to {_shown(target)}; see /languages")
        ranking = dict(LanguageDetector.load().rank(text[:DETECTED_CHARACTERS]))
        best = max(sources, key=lambda code: ranking.get(primary_language(code), 0.0))
        probability = ranking.get(primary_language(best), 0.0)
        return DetectedLanguage(language=best, confidence=round(100 * min(1.0, probability), 1))

    def find_target_language(self, text: str, target: str) -> DetectedLanguage | None:
        """Return the target language if a text is certainly in it, so that it needs no translation.

        Return None also if a model translates within this language, such as from en-US to en-GB.
        """
        if any(
            is_same_language(target, pair.source) and is_same_language(target, pair.target) for pair in self._routes
        ):
            return None
        for code, probability in LanguageDetector.load().rank(text[:DETECTED_CHARACTERS])[:1]:
            if code == primary_language(target) and probability >= LANGUAGE_THRESHOLD:
                return DetectedLanguage(language=target, confidence=round(100 * min(1.0, probability), 1))
        return None

    def find_route(self, source: str, target: str, tag: str | None = None) -> ModelRoute:
        """Return the model and the thread for a language pair. Raises `ApiError` if no model translates it."""
        pair = find_language_pair(self._routes, source, target, tag)
        if pair is None:
            with_tag = "" if tag is None else f" with tag {_shown(tag)}"
            raise ApiError(400, f"no model translates {_shown(source)} to {_shown(target)}{with_tag}; see /languages")
        return self._routes[pair]

    # --- translation --------------------------------------------------------------------------------------------------

    async def translate(self, request: TranslateRequest) -> TranslateAnswer:
        """Answer a request."""
        texts = request.texts()
        self._check_texts(request, texts)
        pool = self._document_pool if request.format == "html" else None
        async with self.slots.take(), self.time_limit():
            sources = await self._run_in_thread(pool, lambda: [self._prepare(text, request) for text in texts])
            jobs: list[TranslationJob] = []
            for source in sources:
                n_best = 1 + min(request.alternatives, source.route.model.loaded.max_alternatives)
                pair, is_document = source.route.language_pair, source.document is not None
                options = BatchOptions(pair, n_best, request.alignment, request.confidence, is_document)
                jobs.append(TranslationJob(options, source.lines, request.prefix))
            lines = await self.run(jobs, [source.route for source in sources])
            answer = await self._run_in_thread(pool, lambda: self._make_answer(request, sources, lines))
        if self.log_text:
            log(f"tmt: {request.source}-{request.target}: {request.q!r} -> {answer.translated_text!r}")
        return answer

    def _prepare(self, text: str, request: TranslateRequest) -> SourceText:
        """Detect the language of a text, find its model and divide it into lines or segments."""
        document = None
        visible = text
        if request.format == "html":
            document = parse_document(text, "html", DocumentOptions(request.target))
            visible = "\n".join(segment.source.text for segment in document.segments)
        detected = self.detect_source(visible, request.target) if request.source == "auto" else None
        route = self.find_route(detected.language if detected else request.source, request.target, request.tag)
        if detected is not None and (found := self.find_target_language(visible, request.target)):
            return SourceText(route, (), None, found, unchanged=text)
        if not route.model.loaded.has_alignments:
            if request.alignment:
                raise ApiError(400, "alignment: a CTranslate2 model has none; serve the run itself")
            if document is not None:
                raise ApiError(400, "format: a CTranslate2 model cannot keep the tags of html; serve the run itself")
        if request.prefix.strip():
            self._check_prefix(request.prefix, text, route.translator)
        if document is not None:
            return SourceText(route, make_segments(document), document, detected)
        lines = (text.strip("\n") if request.prefix else text).split("\n")
        return SourceText(route, [line.removesuffix("\r") for line in lines], None, detected)

    @asynccontextmanager
    async def time_limit(self) -> AsyncGenerator[None]:
        """Stop a translation after `--timeout`, with status 504. Count it, and also one whose client disconnects."""
        try:
            async with asyncio.timeout(self.limits.timeout):
                yield
        except TimeoutError:
            self.metrics.cancelled.labels("time").inc()
            message = f"the translation took more than {self.limits.timeout:g} seconds; send less text"
            raise ApiError(504, message) from None
        except asyncio.CancelledError:
            self.metrics.cancelled.labels("disconnect").inc()
            raise
        except UserError as error:
            raise ApiError(400, str(error)) from None

    @staticmethod
    async def _run_in_thread(pool: Executor | None, function: Callable[[], T]) -> T:
        """Call a function in a thread of `pool`. None: the default pool, which serves requests of plain text."""
        return await asyncio.get_running_loop().run_in_executor(pool, function)

    async def run(self, jobs: Sequence[TranslationJob], routes: Sequence[ModelRoute]) -> list[list[NBest]]:
        """Return the translated lines of each job. The search stops if the task is cancelled."""
        for job, route in zip(jobs, routes, strict=True):
            self.metrics.characters.labels(str(route.language_pair)).inc(sum(map(count_characters, job.lines)))
            route.worker.submit(job)
        try:
            return await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs))
        finally:
            for job in jobs:
                job.is_cancelled = True

    def _check_texts(self, request: TranslateRequest, texts: Sequence[str]) -> None:
        check_text([*texts, request.prefix], self.limits, "q and prefix" if request.prefix else "q")
        if not any(text.strip() for text in texts):
            raise ApiError(400, "q: there is no text to translate")
        for name in ("prefix", "alignment", "confidence"):
            if request.format == "html" and getattr(request, name):
                raise ApiError(400, f"{name}: is for text; leave it out, or send format: text")
        if "\n" in request.prefix or "\r" in request.prefix:
            raise ApiError(400, "prefix: must be one line")
        if request.prefix.strip() and (len(texts) > 1 or "\n" in texts[0].strip("\n")):
            raise ApiError(400, "prefix: q must be one text of one line")

    @staticmethod
    def _check_prefix(prefix: str, text: str, translator: Translator) -> None:
        max_tokens = translator.max_segment_tokens
        if translator.count_tokens([text])[0] > max_tokens:
            raise ApiError(400, "prefix: the text is too long to be translated at once; send one sentence")
        (ids,) = translator.tokenizers.tgt.encode([prefix])
        if len(ids) > 2 * max_tokens:  # a translation may be longer than its source
            raise ApiError(400, f"prefix: {len(ids):,} tokens; at most {2 * max_tokens:,} are accepted")

    @staticmethod
    def _make_answer(
        request: TranslateRequest, sources: Sequence[SourceText], lines: Sequence[Sequence[NBest]]
    ) -> TranslateAnswer:
        n_best_lists = [source.join_n_best(text) for source, text in zip(sources, lines, strict=True)]
        best, others = [n_best[0] for n_best in n_best_lists], [n_best[1:] for n_best in n_best_lists]
        segments: list[list[TranslatedSegment]] = []
        if request.alignment or request.confidence:
            for source, text in zip(sources, lines, strict=True):
                route = source.route
                tokenizer = route.translator.tokenizers.tgt
                segments.append(describe_parts(source.lines, text, tokenizer, confidence=request.confidence))
        detected = [source.detected for source in sources if source.detected is not None]
        is_list = isinstance(request.q, list)
        return TranslateAnswer(
            translatedText=best if is_list else best[0],
            alternatives=None if not request.alternatives else others if is_list else others[0],
            detectedLanguage=None if not detected else detected if is_list else detected[0],
            segments=None if not segments else segments if is_list else segments[0],
        )


def check_text(texts: Sequence[str], limits: Limits, name: str = "q") -> None:
    """Raise `ApiError` for texts that are too long together, or that are not Unicode text."""
    n_characters = sum(map(len, texts))
    if n_characters > limits.max_characters:
        raise ApiError(413, f"{name}: {n_characters:,} characters; at most {limits.max_characters:,} are translated")
    if any(map(has_lone_surrogate, texts)):
        raise ApiError(400, f"{name}: half a character (a lone surrogate); send valid Unicode text")


def _shown(code: str) -> str:
    """Return a code of a request for a message: short, without control characters."""
    return ascii(code[:20])[1:-1]
