"""Text to text: sentences become ids, are translated in batches of like length, and come back in order."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from transformer_mt.data.batching import source_batch
from transformer_mt.data.tokenizer import TokenizerPair
from transformer_mt.decoding.search import DecodingConfig, Hypothesis, greedy
from transformer_mt.device import resolve
from transformer_mt.errors import UserError
from transformer_mt.model.config import ModelConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs import RunFolder
from transformer_mt.training.checkpoint import load_weights


class Translator:
    """A model with its tokenizers.

    >>> Translator.load("runs/quickstart").translate(["The old dog sleeps."])
    ['Der alte Hund schläft.']
    """

    def __init__(self, model: Transformer, tokenizers: TokenizerPair, config: DecodingConfig) -> None:
        self.model, self.tokenizers, self.config = model, tokenizers, config
        self.longest = model.config.longest or sys.maxsize
        self.longest_source = min(config.max_source_length, self.longest - 1 - tokenizers.source_bos)

    @classmethod
    def load(
        cls, run: str | Path, checkpoint: str = "best", device: str = "auto", threads: int | str = "auto"
    ) -> Translator:
        """Read a run folder; the training data is not needed.

        `checkpoint` is best, last or a step's number. Raises `UserError` where there is nothing to read.
        """
        folder = RunFolder.open(run)
        info = folder.checkpoint(checkpoint)
        tokenizers = TokenizerPair.load(folder.tokenizer)
        model = Transformer(folder.section("model", ModelConfig), tokenizers.src, tokenizers.tgt)
        load_weights(model, info)
        machine = resolve(device, "fp32", threads)
        return cls(model.to(machine.device).eval(), tokenizers, folder.section("decoding", DecodingConfig))

    def translate(self, texts: Sequence[str]) -> list[str]:
        """One line for each text, in order, greedily, in fp32. A blank text becomes an empty one.

        A text that is longer than `decoding.max_source_length`, or than the model's positions, is cut, with a warning
        (`CutSource`).
        """
        return [text for text, _ in self._translate(texts, first_line=1)]

    def translate_marked(self, texts: Sequence[str]) -> list[tuple[str, bool]]:
        """The same, each with whether it came to its end by itself rather than at the longest that is allowed."""
        return self._translate(texts, first_line=1)

    def stream(self, lines: Iterable[str], window: int = 1000) -> Iterator[str]:
        """The same for any number of lines in constant memory: a window at a time."""
        done = 0
        for texts in _windows(lines, window):
            yield from (text for text, _ in self._translate(texts, first_line=done + 1))
            done += len(texts)

    def _translate(self, texts: Sequence[str], first_line: int) -> list[tuple[str, bool]]:
        coded = self.tokenizers.src.encode(texts)
        limit = self.longest_source
        for line, ids in enumerate(coded, start=first_line):
            if len(ids) > limit:
                warnings.warn(CutSource(f"line {line} has {len(ids)} tokens and was cut to {limit}"), stacklevel=3)
                del ids[limit:]
        found: dict[int, Hypothesis] = {}
        worth = [i for i, text in enumerate(texts) if text.strip()]
        was_training = self.model.training
        self.model.eval()
        for batch in self._batches(worth, coded):
            found.update(zip(batch, self.search([coded[i] for i in batch]), strict=True))
        self.model.train(was_training)
        nothing = Hypothesis([], finished=True)
        hypotheses = [found.get(i, nothing) for i in range(len(texts))]
        outputs = self.tokenizers.tgt.decode([hypothesis.ids for hypothesis in hypotheses])
        return [(text.replace("\n", " "), to.finished) for text, to in zip(outputs, hypotheses, strict=True)]

    def _batches(self, worth: list[int], coded: list[list[int]]) -> Iterator[list[int]]:
        """Sentences of like length, the longest first, at most `batch_tokens` padded source tokens at a time."""
        batch: list[int] = []
        for i in sorted(worth, key=lambda i: -len(coded[i])):
            if batch and (len(batch) + 1) * (len(coded[batch[0]]) + 1) > self.config.batch_tokens:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    @torch.inference_mode()
    def search(self, sentences: list[list[int]]) -> list[Hypothesis]:
        """A batch of source ids, translated greedily by a model that is not training."""
        device = self.model.output.weight.device
        factor, offset = self.config.max_length_factor, self.config.max_length_offset
        lengths = [min(int(factor * len(ids)) + offset, self.longest) for ids in sentences]
        limits = torch.tensor(lengths, device=device)
        cache = self.model.start(source_batch(sentences, self.tokenizers).to(device))
        tokenizer = self.tokenizers.tgt
        return greedy(self.model.step, cache, tokenizer.bos_id, tokenizer.eos_id, limits)


class CutSource(UserWarning):
    """A source was longer than `decoding.max_source_length`, or than the positions that the model has learnt."""


def _windows(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lines by the window; when reading fails, what was read before comes first."""
    window: list[str] = []
    try:
        for line in lines:
            window.append(line)
            if len(window) == size:
                yield window
                window = []
    except UserError:
        yield window
        raise
    yield window
