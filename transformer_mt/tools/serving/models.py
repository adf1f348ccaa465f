"""The models of the server: loading of runs and exported folders, language pairs, and reloading."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import EXPORT, RunFolder
from transformer_mt.runs.records import CorruptFileError
from transformer_mt.system.files import read_bytes, refuse_special_files
from transformer_mt.system.log import log
from transformer_mt.tools.documents.formats import protect_elements
from transformer_mt.tools.serving.batching import BatchLine, BatchOptions, LanguagePair, NBest


@dataclass(frozen=True)
class ModelOptions:
    """Options of `tmt serve` that apply to all models."""

    load: Callable[[Path], Translator]
    """Loads the model of a folder."""
    checkpoint: str = "best"


@dataclass(frozen=True)
class LoadedModel:
    """One checkpoint in memory, with a translator for each of its language pairs."""

    version: str
    """Checkpoint with the checksum of its weights."""
    translators: Mapping[LanguagePair, Translator]
    has_alignments: bool

    @property
    def max_alternatives(self) -> int:
        """Translations that the search can return beside the best one."""
        config = next(iter(self.translators.values())).config
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

    def translate(self, options: BatchOptions, lines: Sequence[BatchLine]) -> Sequence[NBest]:
        """Translate a batch of lines with the checkpoint that is loaded now, each with up to `n_best` translations."""
        translator = self.loaded.translators[options.language_pair]
        if options.is_document:
            translator = protect_elements(translator)
        return translator.n_best(
            [line.text for line in lines],
            [line.prefix for line in lines],
            [line.position + 1 for line in lines],
            alignments=options.alignments,
            scores=options.scores,
            is_cancelled=lambda index: lines[index].job.is_cancelled,
            n_best=options.n_best,
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
            info = run.find_checkpoint(self.options.checkpoint)
        except CorruptFileError as error:
            raise UserError(str(error)) from None
        return f"{info.step} {sorted((name, file.sha256) for name, file in info.files.items())}"


def load_models(paths: Sequence[Path], options: ModelOptions) -> list[ServedModel]:
    """Load the models of several folders. Raises `UserError` if two have the same language pair and tag."""
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
    translator = options.load(path)
    tags = [translator.config.tag]
    if translator.runs and translator.config.tag is None:
        data = translator.runs[0].data
        tags = [*([] if data.needs_tag else [None]), *data.tags]
    elif translator.tokenizers.needs_tag and translator.config.tag is None:
        raise UserError(
            f"{path}: does not record the languages of its tags; choose one with --tag, or serve the run itself"
        )
    translators: dict[LanguagePair, Translator] = {}
    for tag in tags:
        tagged = translator.with_options({"tag": tag})
        provenance = tagged.provenance()
        translators[LanguagePair(provenance.src_lang, provenance.tgt_lang, tag)] = tagged
    version = f"checkpoint {translator.provenance().identity['checkpoint']}"
    return LoadedModel(version, translators, has_alignments=translator.engine.has_alignments)


def iterate_language_pairs(models: Sequence[ServedModel]) -> Iterator[tuple[LanguagePair, ServedModel]]:
    """Yield each language pair with its model."""
    for model in models:
        for pair in model.language_pairs:
            yield pair, model
