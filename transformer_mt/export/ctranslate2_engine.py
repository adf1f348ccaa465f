"""`tmt translate --engine ctranslate2`: an exported folder in place of a run, CTranslate2 in place of our search.

Both follow K branches of a sentence until K translations have ended, and compare these by log-probability / length^A,
where the end symbol counts as a token (measured of CTranslate2 4.8.5). What is not alike: to the engine a token that
`min_length` or `no_repeat_ngram` forbids is none, so that the others become likelier; behind a beginning that is given,
a translation ends at once only where nothing is likelier; and an empty source has an empty translation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from shlex import quote
from typing import Any, cast

import ctranslate2
import tokenizers as hf
import torch
from pydantic import BaseModel, PositiveInt, ValidationError

from transformer_mt.data.tokenizers.components import EOS
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.decoding.alignment import WordAlignment
from transformer_mt.decoding.beam_search import Hypothesis
from transformer_mt.decoding.config import DecodingConfig
from transformer_mt.decoding.provenance import ModelProvenance
from transformer_mt.decoding.text_translator import EMPTY_HYPOTHESIS, TextTranslator
from transformer_mt.errors import UserError
from transformer_mt.export.ctranslate2_model import vocabulary
from transformer_mt.export.ctranslate2_support import unsupported_search
from transformer_mt.runs.folder import EXPORT, RunFolder
from transformer_mt.system.device import configure_process, resolve_machine

HARDLY = 1e-9  # in place of an exponent of 0, with which the engine ends a search before K translations have ended
TYPES = {"fp32": "float32", "bf16": "bfloat16"}


class Engine(TextTranslator):
    """A model that CTranslate2 holds. It takes the options of a `Translator` but those that `unsupported_search` names.

    >>> Engine.load("engine").translate(["The old dog sleeps."])
    ['Der alte Hund schläft.']
    """

    def __init__(
        self,
        folder: Path,
        tokenizers: TokenizerPair,
        config: DecodingConfig,
        positions: int,
        device: str = "cpu",
        scores: bool = True,
    ) -> None:
        """Without `scores`, translations have none; they cost one more reading of each."""
        super().__init__(tokenizers, config, max_positions=positions)
        self.has_scores = scores
        self.src, self.tgt = (vocabulary(side.pad_id) for side in (tokenizers.src, tokenizers.tgt))
        self.ids = {token: i for i, token in enumerate(self.tgt)}
        ctranslate2.set_log_level(40)  # it warns of types that this processor lacks, and we name the one that it took
        kind, _, index = device.partition(":")
        self.inner = cast(Any, ctranslate2).Translator(
            str(folder), device=kind, device_index=int(index or 0), intra_threads=torch.get_num_threads()
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
        scores: bool = True,
        **options: Any,
    ) -> Engine:
        """Read a folder that `tmt export --to ctranslate2` made.

        `precision`: that of the folder, or auto. Raises `UserError` for what is not there, or not in this engine.
        """
        folder = Path(run)
        about = read_about(folder)
        if checkpoint != "best":
            raise UserError(f"--checkpoint {checkpoint}: {folder} holds one checkpoint, of step {about.step:,}")
        configure_process(resolve_machine("cpu", "fp32", threads))
        check_device(device)
        try:
            files = (str(folder / f"{side}_tokenizer.json") for side in ("src", "tgt"))
            src, tgt = (Tokenizer(hf.Tokenizer.from_file(file)) for file in files)
            pair = TokenizerPair(src, tgt, about.source_bos)
            config = about.decoding.with_options(options)
            refuse(config)
            engine = cls(folder, pair, config, about.positions, device, scores)
        except UserError:
            raise
        except Exception as error:  # both libraries raise bare Exceptions
            raise UserError(f"{folder}: is damaged ({error}); export it again") from None
        if precision != "auto" and {about.quantization, engine.inner.compute_type} != {TYPES[precision]}:
            is_held = about.quantization == TYPES[precision]
            raise UserError(
                f"--precision {precision}: {folder} holds {about.quantization}, computed here in "
                f"{engine.inner.compute_type}; leave it out"
                + ("" if is_held else f", or export with --quantization {TYPES[precision]}")
            )
        return engine

    def translate_ids(
        self,
        sources: list[list[int]],
        config: DecodingConfig,
        lines: Sequence[int] | None = None,
        prefixes: list[list[int]] | None = None,
    ) -> list[list[Hypothesis]]:
        """A batch of source ids -> their hypotheses, the best first."""
        refuse(config)
        begun = prefixes or [[] for _ in sources]
        limits = [config.max_target_tokens(len(ids)) + len(first) for ids, first in zip(sources, begun, strict=True)]
        found = self._within(limits, sources, begun, config)
        if prefixes is not None:  # whose log-probabilities the engine leaves out

            def worth(one: Hypothesis) -> tuple[bool, float]:
                return one.finished, float(config.length_normalise(torch.tensor(one.score), max(1, len(one.log_probs))))

            return [sorted(of_one, key=worth, reverse=True) for of_one in self._scored(sources, found)]
        if self.has_scores:
            return self._scored(sources, [of_one[: config.n_best] for of_one in found])
        return found

    def _within(
        self, limits: Sequence[int], sentences: list[list[int]], begun: list[list[int]], config: DecodingConfig
    ) -> list[list[Hypothesis]]:
        """Hypotheses without scores: first those that came to their end, each kind the best first.

        The engine has one limit for a batch. A sentence all whose translations end within its own has found what it
        would have found under that; the others are translated again, and give back all that they found.
        """
        limits = [min(limit, self.max_positions) for limit in limits]
        found = [[EMPTY_HYPOTHESIS] for _ in sentences]
        cut: dict[int, list[int]] = {}

        def translate(places: list[int], limit: int, n: int) -> Iterator[tuple[int, list[Hypothesis]]]:
            sources, first = [sentences[i] for i in places], [begun[i] for i in places]
            return zip(places, self._translate(sources, first, config, limit, n), strict=True)

        for i, of_one in translate([i for i, ids in enumerate(sentences) if ids], max(limits), config.beam):
            found[i] = of_one
            if not all(one.finished and len(one.ids) < limits[i] for one in of_one):
                cut.setdefault(limits[i], []).append(i)
        for limit, places in cut.items():
            for i, of_one in translate(places, limit, 2 * config.beam if config.beam > 1 else 1):
                found[i] = sorted(of_one, key=lambda one: not one.finished)[: config.beam]
        return found

    def _translate(
        self, sources: list[list[int]], begun: list[list[int]], config: DecodingConfig, limit: int, n: int
    ) -> list[list[Hypothesis]]:
        """Up to n hypotheses; the search of a sentence goes on until n have ended."""
        results = self.inner.translate_batch(
            self._sources(sources),
            [[self.tgt[i] for i in ids] for ids in begun] if any(begun) else None,
            beam_size=config.beam,
            num_hypotheses=n,
            patience=n / config.beam,
            length_penalty=config.length_penalty_exponent or HARDLY,
            no_repeat_ngram_size=config.no_repeat_ngram,
            min_decoding_length=min(config.min_length, limit),
            max_decoding_length=limit,
            max_input_length=0,
            return_end_token=True,
        )
        return [[self._hypothesis(tokens) for tokens in result.hypotheses] for result in results]

    def _hypothesis(self, tokens: list[str]) -> Hypothesis:
        finished = tokens[-1:] == [EOS]
        return Hypothesis([self.ids[token] for token in tokens[: len(tokens) - finished]], [], finished)

    def _scored(self, sentences: list[list[int]], found: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """The same with log-probabilities; the last token of one that fills all positions of the model has none."""
        pairs = [(ids, one.ids) for ids, of_one in zip(sentences, found, strict=True) if ids for one in of_one]
        scores = iter(
            self.target_log_probs([src for src, _ in pairs], [tgt[: self.max_positions - 1] for _, tgt in pairs])
        )

        def scored(one: Hypothesis) -> Hypothesis:
            log_probs = next(scores)
            return Hypothesis(one.ids, log_probs if one.finished else log_probs[:-1], one.finished)

        return [
            [scored(one) for one in of_one] if ids else of_one for ids, of_one in zip(sentences, found, strict=True)
        ]

    def target_log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probability of each token of given translations, end symbol included."""
        tokens = [[self.tgt[i] for i in ids] for ids in targets]
        found = self.inner.score_batch(self._sources(sources), tokens, max_input_length=0)
        return [result.log_probs for result in found]

    def word_alignments(
        self, texts: Sequence[str], sources: list[list[int]], hypotheses: list[list[Hypothesis]]
    ) -> list[WordAlignment]:
        raise no_alignments()

    def _sources(self, sources: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self.src[i] for i in ids] for ids in sources]


# --- the folder -------------------------------------------------------------------------------------------------------


class TrainedOn(BaseModel):
    """The pairs that the model has learnt from."""

    src_lang: str
    tgt_lang: str
    max_length: PositiveInt


class About(BaseModel):
    """What the engine has to know of a folder: a part of what export.json says."""

    step: int
    quantization: str
    data: TrainedOn
    source_bos: bool
    positions: PositiveInt
    decoding: DecodingConfig


def read_about(folder: Path) -> About:
    """Raises `UserError` for anything but a folder that this version exported."""
    path = folder / EXPORT
    if RunFolder(folder).exists():
        raise UserError(
            f"{folder}: is a run; `tmt export {quote(str(folder))} --to ctranslate2 --output DIR` makes what "
            "`tmt translate --engine ctranslate2 DIR` reads"
        )
    if not path.exists():
        raise UserError(f"{folder}: has no {EXPORT}; name a folder that tmt export --to ctranslate2 made")
    try:
        return About.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ") for one in error.errors())
        raise UserError(f"{path}: {'; '.join(problems)}; export the run again with this version") from None


def provenance(folder: Path, engine: Engine) -> ModelProvenance:
    """What `tmt translate` has to know of an exported folder."""
    about = read_about(folder)
    seal = sha256((folder / EXPORT).read_bytes()).hexdigest()  # it holds when it was exported
    used = {
        "--engine": f"ctranslate2 {ctranslate2.__version__} ({engine.inner.compute_type})",
        "exported": folder.resolve().name,
        "checkpoint": f"{about.step} ({seal[:12]})",
    }
    return ModelProvenance(used, **about.data.model_dump())


# --- what the engine does not do --------------------------------------------------------------------------------------


def refuse(config: DecodingConfig) -> None:
    """Raise `UserError` for settings of the search that the engine does not have."""
    for key, why in unsupported_search(config):
        raise UserError(f"--engine ctranslate2: decoding.{key}: {why}, or translate with the run itself")


def no_alignments() -> UserError:
    """The answer to who asks for them."""
    return UserError("--engine ctranslate2: --alignments: leave it out, or translate with the run itself")


def check_device(device: str) -> None:
    """Raise `UserError` for a device that the engine does not have here."""
    kind, colon, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (colon and not (kind == "cuda" and index.isdecimal())):
        raise UserError(f"--device {device}: CTranslate2 has auto, cpu, cuda and cuda:N")
    n_devices: int = cast(Any, ctranslate2).get_cuda_device_count()
    if kind == "cuda" and int(index or 0) >= n_devices:
        raise UserError(f"--device {device}: is not there ({n_devices} CUDA devices); choose cpu")
