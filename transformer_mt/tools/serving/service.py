"""The service that the endpoints call: it finds the model, translates within the limits, and detects languages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.exceptions import HTTPException

from transformer_mt.data.data_config import Direction, normalize_language, primary_language
from transformer_mt.system.log import log
from transformer_mt.tools.languages.detection import LANGUAGE_THRESHOLD, LanguageDetector, detected_label, language_name
from transformer_mt.tools.serving.batching import BatchingWorker, BatchOptions, NBest
from transformer_mt.tools.serving.limits import ApiKeys, Limits
from transformer_mt.tools.serving.models import ServedModel, SourceText
from transformer_mt.tools.serving.schemas import (
    DetectedLanguage,
    Language,
    TranslateRequest,
    TranslateResponse,
)

DETECTED_CHARACTERS = 2000  # of a text, for the detection of its language
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LINES = (1, 2, 4, 8, 16, 32, 64)


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
        self.batch_seconds = measure("tmt_batch_seconds", "Time of a batch", buckets=SECONDS)
        self.reloads = count("tmt_reloads", "Checkpoints loaded while serving")

    def record_request(self, method: str, path: str, status: int, seconds: float) -> None:
        """Record a request."""
        self.requests.labels(method, path, status).inc()
        self.seconds.labels(path).observe(seconds)

    def observe_batch(self, n_lines: int, seconds: float) -> None:
        """Record a batch."""
        self.batch_lines.observe(n_lines)
        self.batch_seconds.observe(seconds)

    def render(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self.registry)


class ModelRoute(NamedTuple):
    """A direction, with the model and the worker that translate in it."""

    direction: Direction
    model: ServedModel
    worker: BatchingWorker


class RoutedText(NamedTuple):
    """A text of a request with its model. A text in the target language has no model, because it stays unchanged."""

    source: SourceText
    detected: DetectedLanguage | None
    route: ModelRoute | None

    def join_n_best(self, lines: Sequence[NBest]) -> list[str]:
        """Return the different translations of the text, the best first."""
        return self.source.join_n_best(lines) if self.route else [self.source.text]


class TranslationService:
    """The models of the server, each with its worker."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: Limits,
        keys: ApiKeys | None = None,
        *,
        log_text: bool = False,
    ) -> None:
        self.models, self.limits, self.keys, self.log_text = models, limits, keys, log_text
        self.metrics = Metrics()
        self.metrics.in_flight.set_function(lambda: self.n_running)
        self.n_running = 0
        self._routes: dict[Direction, ModelRoute] = {}
        for model in models:
            worker = BatchingWorker(model.translate, self.metrics.observe_batch)
            self._routes |= {each: ModelRoute(each, model, worker) for each in model.directions}

    def close(self) -> None:
        """End the worker threads."""
        for route in self._routes.values():
            route.worker.close()

    def reload(self) -> None:
        """Load new checkpoints. Requests continue with the old ones meanwhile."""
        for model in self.models:
            if model.reload():
                self.metrics.reloads.inc()

    def check_key(self, key: str | None) -> None:
        """Raise `HTTPException` unless the key is valid, or the server has no keys."""
        if self.keys is not None:
            self.keys.check(key)

    def check_length(self, texts: Sequence[str]) -> None:
        """Raise `HTTPException` for texts that are too long together."""
        n_characters, maximum = sum(map(len, texts)), self.limits.max_characters
        if n_characters > maximum:
            raise HTTPException(413, f"q: {n_characters:,} characters; at most {maximum:,} are translated")

    # --- languages ----------------------------------------------------------------------------------------------------

    def languages(self) -> list[Language]:
        """Return the source languages, in the order of the models."""
        targets: dict[str, dict[str, None]] = {}
        for src_lang, tgt_lang, _ in self._routes:
            targets.setdefault(src_lang, {})[tgt_lang] = None
        return [Language(code=code, name=language_name(code), targets=[*known]) for code, known in targets.items()]

    def detect(self, text: str) -> list[DetectedLanguage]:
        """Return the likely languages of a text, the most likely first."""
        likely = [_make_detected(code, probability) for code, probability in _rank_languages(text).items()]
        return [detected for detected in likely[:5] if detected.confidence >= 1]

    def _detect_source(self, text: str, target: str) -> DetectedLanguage:
        """Return the most likely language of a text among those that a model translates to `target`.

        Return the target language if the text is certainly in it, unless a model translates within this language,
        such as from en-US to en-GB.
        """
        sources = [each.src_lang for each in self._routes if is_same_language(target, each.tgt_lang)]
        if not sources:
            raise HTTPException(400, f"target: no model translates to {_shown(target)}; see /languages")
        ranking = _rank_languages(text)
        language = detected_label(target)
        is_certain = next(iter(ranking), None) == language and ranking[language] >= LANGUAGE_THRESHOLD
        if is_certain and language not in map(detected_label, sources):
            return _make_detected(target, ranking[language])
        best = max(sources, key=lambda code: ranking.get(detected_label(code), 0.0))
        return _make_detected(best, ranking.get(detected_label(best), 0.0))

    # --- translation --------------------------------------------------------------------------------------------------

    async def translate(self, request: TranslateRequest) -> TranslateResponse:
        """Answer a request. Raises `HTTPException` or `UserError` if it is refused."""
        self._check_texts(request)
        async with self._limit_work():
            texts = await asyncio.to_thread(lambda: [self._prepare(text, request) for text in request.texts])
            tasks = [asyncio.create_task(self._translate(text, request)) for text in texts]
            try:
                lines = await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
            answer = await asyncio.to_thread(self._make_answer, request, texts, lines)
        if self.log_text:
            log(f"tmt: {request.source}-{request.target}: {request.q!r} -> {answer.translatedText!r}")
        return answer

    def _check_texts(self, request: TranslateRequest) -> None:
        self.check_length(request.texts)
        if not any(text.strip() for text in request.texts):
            raise HTTPException(400, "q: there is no text to translate")

    @asynccontextmanager
    async def _limit_work(self) -> AsyncGenerator[None]:
        """Refuse a request above the limit, and stop it after the time limit. Count those that are given up."""
        if self.n_running >= self.limits.max_requests:
            raise HTTPException(429, "too many requests at the same time; try again soon", {"Retry-After": "1"})
        self.n_running += 1
        try:
            async with asyncio.timeout(self.limits.timeout):
                yield
        except TimeoutError:
            self.metrics.cancelled.labels("time").inc()
            message = f"the translation took more than {self.limits.timeout:g} seconds; send less text"
            raise HTTPException(504, message) from None
        except asyncio.CancelledError:
            self.metrics.cancelled.labels("disconnect").inc()
            raise
        finally:
            self.n_running -= 1

    def _prepare(self, text: str, request: TranslateRequest) -> RoutedText:
        """Divide a text, detect its language and find its model."""
        source, detected, language = SourceText.parse(text, request), None, request.source
        if language == "auto":
            detected = self._detect_source(source.visible, request.target)
            language = detected.language
        direction = find_direction(self._routes, language, request.target, request.tag)
        if direction is None and detected is not None and language == request.target:
            return RoutedText(source, detected, None)
        if direction is None:
            with_tag = "" if request.tag is None else f" with tag {_shown(request.tag)}"
            codes = f"{_shown(language)} to {_shown(request.target)}"
            raise HTTPException(400, f"source, target: no model translates {codes}{with_tag}; see /languages")
        route = self._routes[direction]
        route.model.check_request(request)
        return RoutedText(source, detected, route)

    async def _translate(self, text: RoutedText, request: TranslateRequest) -> list[NBest]:
        """Return the translated lines of a text."""
        if text.route is None:
            return []
        direction, model, worker = text.route
        n_best = 1 + min(request.alternatives, model.loaded.max_alternatives)
        options = BatchOptions(direction, n_best, is_document=request.format == "html")
        lengths = text.source.lengths
        self.metrics.characters.labels(str(direction)).inc(sum(lengths))
        return await worker.run(options, text.source.lines, lengths)

    @staticmethod
    def _make_answer(
        request: TranslateRequest, texts: Sequence[RoutedText], lines: Sequence[Sequence[NBest]]
    ) -> TranslateResponse:
        best: list[str] = []
        others: list[list[str]] = []
        for text, found in zip(texts, lines, strict=True):
            n_best = text.join_n_best(found)
            best.append(n_best[0])
            others.append(n_best[1:])
        detected = [text.detected for text in texts if text.detected is not None]
        is_list = isinstance(request.q, list)
        return TranslateResponse(
            translatedText=best if is_list else best[0],
            alternatives=None if not request.alternatives else others if is_list else others[0],
            detectedLanguage=None if not detected else detected if is_list else detected[0],
        )


@lru_cache(maxsize=10_000)  # a model of 200 languages has 40,000 directions
def is_same_language(code: str, other: str) -> bool:
    """Return whether two codes name one language: `en` and `eng_Latn`, but not `zh-Hans` and `zh-Hant`."""
    subtags = {normalize_language(each).partition("-")[2] for each in (code, other)} - {""}  # script and region
    return primary_language(code) == primary_language(other) and len(subtags) < 2


def find_direction(
    directions: Iterable[Direction], source: str, target: str, tag: str | None = None
) -> Direction | None:
    """Return the first direction that fits, or None. An exact code comes before another code of the language."""
    fitting = [
        each
        for each in directions
        if tag in (None, each.tag)
        and is_same_language(source, each.src_lang)
        and is_same_language(target, each.tgt_lang)
    ]
    return min(fitting, key=lambda each: (each.src_lang != source) + (each.tgt_lang != target), default=None)


def _rank_languages(text: str) -> dict[str, float]:
    """Return the probabilities of languages, the most likely first."""
    return dict(LanguageDetector.load().rank(text[:DETECTED_CHARACTERS]))


def _make_detected(code: str, probability: float) -> DetectedLanguage:
    return DetectedLanguage(language=code, confidence=round(100 * min(1.0, probability), 1))


def _shown(code: str) -> str:
    """Return a code of a request for a message: short, without control characters."""
    return ascii(code[:20])[1:-1] or "(empty)"
