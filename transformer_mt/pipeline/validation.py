"""Validation: the loss with the reference as input, and free translations scored as text."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from transformer_mt.data.batches import BatchStream
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.attention_maps import translate_with_attention
from transformer_mt.decoding.config import DecodingConfig
from transformer_mt.decoding.text_translator import TruncatedSourceWarning
from transformer_mt.decoding.translator import Translator
from transformer_mt.evaluation.degenerate import find
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.evaluation.samples import Sample
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import Machine
from transformer_mt.training.cross_entropy import batch_loss, perplexity
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.trainer import ValidationResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Validator:
    """Called by the trainer; looks at the model as it is, without dropout, and leaves it as it was."""

    def __init__(
        self,
        model: Transformer,
        tokenizers: TokenizerPair,
        decoding: DecodingConfig,
        stream: BatchStream,
        pairs: list[tuple[str, str]],
        *,
        machine: Machine,
        ranks: Ranks,
        smoothing: float,
        standard: Scorer,
        probes: int,
    ) -> None:
        self.model, self.tokenizers, self.decoding, self.stream = model, tokenizers, decoding.for_validation(), stream
        self.sources, self.references = [src for src, _ in pairs], [tgt for _, tgt in pairs]
        self.machine, self.ranks, self.smoothing, self.standard = machine, ranks, smoothing, standard
        # probes stand evenly spread over the set, so that they differ as the set does
        n = min(probes, len(pairs))
        self.probes = [i * len(pairs) // n for i in range(n)]

    def __call__(self) -> ValidationResult:
        translator = Translator.from_model(self.model, self.tokenizers, self.decoding, self.machine.precision)
        lines = self.ranks.share(range(1, len(self.sources) + 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncatedSourceWarning)  # the data report has told of them
            own = translator.n_best(self.ranks.share(self.sources), lines=lines)
        found = self.ranks.gather([best for best, *_ in own])
        hypotheses, finished = [one.text for one in found], [one.finished for one in found]
        scores = self.standard.score(hypotheses, self.references)
        degenerate = find(self.sources, hypotheses, finished)
        values = {**self.losses(), "bleu": scores.bleu.value, "chrf": scores.chrf.value, "degenerate": degenerate.share}

        def sample(i: int) -> Sample:
            return Sample(self.sources[i], hypotheses[i], self.references[i])

        failures = {kind: sample(places[0]) for kind, places in degenerate.kinds.items()}
        return ValidationResult(
            values, [sample(i) for i in self.probes], lambda: self.draw(translator), degenerate, failures
        )

    def draw(self, translator: Translator) -> dict[str, Figure]:
        """The last layer's cross-attention for the first probe."""
        if not self.probes:
            return {}
        last = len(translator.model.decoder.layers)
        return {
            "attention": translate_with_attention(translator, self.sources[self.probes[0]]).figure("cross", layer=last)
        }

    @torch.no_grad()
    def losses(self) -> dict[str, float]:
        """Means over the labels of the whole set: smoothed loss, negative log-likelihood, perplexity."""
        model = self.model
        was_training = model.training
        model.eval()
        sums = torch.zeros(3, device=self.machine.device)
        for batch in self.stream.shortest_first(self.ranks.rank, self.ranks.size):
            with self.machine.autocast():
                loss = batch_loss(model, batch.to(self.machine.device), self.smoothing)
            sums += torch.stack([loss.total, loss.nll, torch.full_like(loss.nll, batch.n_tgt)])
        model.train(was_training)
        smoothed, nll, labels = map(float, self.ranks.all_reduce_sum([sums])[0])
        smoothed, nll = smoothed / labels, nll / labels
        return {"loss": smoothed, "nll": nll, "ppl": perplexity(nll)}
