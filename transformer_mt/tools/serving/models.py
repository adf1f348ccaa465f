"""The models of the server: loading and reloading of runs, and translation of texts.

Only this module of the server knows the translator.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from transformer_mt.data.data_config import DataConfig, Direction, split_tag
from transformer_mt.decoding.translator import Translator, TruncatedSourceWarning
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.records import CorruptFileError
from transformer_mt.system.log import log
from transformer_mt.tools.documents.document import Document, DocumentOptions
from transformer_mt.tools.documents.formats import fill_document, list_sources, parse_document, protect_elements
from transformer_mt.tools.serving.batching import BatchLine, BatchOptions, NBest, SourceLine
from transformer_mt.tools.serving.schemas import TranslateRequest


@dataclass(frozen=True)
class ModelOptions:
    """Options of `tmt serve` that apply to all models."""

    load: Callable[[Path], Translator]
    """Loads the model of a folder."""
    checkpoint: str = "best"


@dataclass(frozen=True)
class LoadedModel:
    """One checkpoint in memory."""

    version: str
    """Checkpoint with the checksum of its weights."""
    translator: Translator
    directions: tuple[Direction, ...]

    @property
    def max_alternatives(self) -> int:
        """Translations that the search can return beside the best one."""
        config = self.translator.config
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
    def directions(self) -> tuple[Direction, ...]:
        """The directions in which the model translates."""
        return self.loaded.directions

    def translate(self, options: BatchOptions, lines: Sequence[BatchLine]) -> Sequence[NBest]:
        """Translate a batch of lines with the checkpoint that is loaded now, each with up to `n_best` translations."""
        translator = self.loaded.translator
        if options.is_document:
            translator = protect_elements(translator)
        return translator.n_best(
            [line.text for line in lines],
            [line.position + 1 for line in lines],
            scores=False,
            tags=[options.direction.tag] * len(lines),
            n_best=options.n_best,
        )

    def check_request(self, request: TranslateRequest) -> None:
        """Raise `UserError` if the model cannot do what a request asks for."""
        if request.format == "html" and not self.loaded.translator.engine.has_alignments:
            raise UserError(
                "format: html needs word alignments, which CTranslate2 lacks; serve the run with --engine auto"
            )

    def reload(self) -> bool:
        """Load the folder again if its checkpoint has changed. Return whether it had.

        The old checkpoint stays if the new one cannot be read, or has other language pairs. The reason is logged, but
        not again while it stays the same.
        """
        with self._lock:
            try:
                source = self._source_version()
                loaded = self.loaded if source == self._source else _load(self.path, self.options)
                if loaded.directions != self.loaded.directions:
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
        try:
            run = RunFolder.open(self.path)
            info = run.find_checkpoint(self.options.checkpoint)
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
            return cls(text, list_sources(document), document)
        return cls(text, [line.removesuffix("\r") for line in text.split("\n")])

    @property
    def visible(self) -> str:
        """The text without markup."""
        if self.document is None:
            return self.text
        return "\n".join(segment.source.plain_text for segment in self.document.segments)

    @property
    def lengths(self) -> list[int]:
        """Characters of each line, with its elements."""
        return [len(line if isinstance(line, str) else line.surface) for line in self.lines]

    def join_n_best(self, translated: Sequence[NBest]) -> list[str]:
        """Return the different translations of the text, the best first."""
        n_best_lists = [[translation.text for translation in n_best] for n_best in translated]
        texts: dict[str, None] = {}
        for rank in range(max(map(len, n_best_lists), default=1)):
            if self.document is None:
                texts["\n".join(n_best[min(rank, len(n_best) - 1)] for n_best in n_best_lists)] = None
            else:
                texts[fill_document(self.document, translated, rank)] = None
        return [*texts]


def load_models(paths: Sequence[Path], options: ModelOptions) -> list[ServedModel]:
    """Load the models of several folders. Raises `UserError` if two have the same language pair and tag."""
    warnings.simplefilter("ignore", TruncatedSourceWarning)  # it concerns the text of a client
    models: list[ServedModel] = []
    owners: dict[Direction, Path] = {}
    for path in paths:
        models.append(ServedModel(path, options))
        if shared := next((each for each in models[-1].directions if each in owners), None):
            reason = f"translates {shared}, as {owners[shared]} does"
            raise UserError(f"{path}: {reason}; leave out one of them, or select a tag with --tag")
        owners |= dict.fromkeys(models[-1].directions, path)
    return models


def _load(path: Path, options: ModelOptions) -> LoadedModel:
    translator = options.load(path)
    if translator.engine.has_alignments:
        translator.engine.as_torch()  # load it now: a running training may delete the checkpoint later
    version = f"checkpoint {translator.provenance().identity['checkpoint']}"
    return LoadedModel(version, translator, tuple(_list_directions(translator.runs[0].data, translator.config.tag)))


def _list_directions(data: DataConfig, tag: str | None) -> list[Direction]:
    """Return the direction of a tag, or all of a model: an imported one translates between any two of its languages."""
    tags = [tag] if tag else [*([] if data.needs_tag else [None]), *data.tags]
    found = [Direction(*data.languages_of(each), each) for each in tags]
    if len(found) == 1 or not all(source.pretrained and ":" in (source.tag or "") for source in data.train_sources):
        return found
    sources = [(each.src_lang, split_tag(each.tag or "")[0]) for each in found]
    targets = [(each.tgt_lang, split_tag(each.tag or "")[1]) for each in found]
    return [Direction(a, b, f"{src}:{tgt}") for (a, src), (b, tgt) in product(sources, targets) if src != tgt]
