"""Validation: loss with teacher forcing, scores of greedy translations, and a check for degenerate output."""

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
from transformer_mt.evaluation.degenerate import find_degenerate
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.evaluation.samples import Sample, as_markdown
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import Machine
from transformer_mt.training.cross_entropy import batch_loss, perplexity
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.validation_result import ValidationResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Validator:
    """Scores the current weights of a model, without dropout, and leaves the model as it was."""

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
        scorer: Scorer,
        probes: int,
    ) -> None:
        self.model, self.tokenizers, self.decoding, self.stream = model, tokenizers, decoding.for_validation(), stream
        self.sources, self.references = [src for src, _ in pairs], [tgt for _, tgt in pairs]
        self.machine, self.ranks, self.smoothing, self.scorer = machine, ranks, smoothing, scorer
        n = min(probes, len(pairs))
        self.probes = [i * len(pairs) // n for i in range(n)]  # indices of examples, spread evenly over the set

    def __call__(self) -> ValidationResult:
        """Compute losses, translate the validation set on all ranks, and score the translations."""
        translator = Translator.from_model(self.model, self.tokenizers, self.decoding, self.machine.precision)
        lines = self.ranks.shard(range(1, len(self.sources) + 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncatedSourceWarning)  # the data report lists them
            n_best = translator.n_best(self.ranks.shard(self.sources), lines=lines)
        translations = self.ranks.all_gather([best for best, *_ in n_best])
        hypotheses = [translation.text for translation in translations]
        text_scores = self.scorer.score(hypotheses, self.references)
        degenerate = find_degenerate(self.sources, hypotheses, [translation.finished for translation in translations])
        scores = {
            **self.losses(),
            "bleu": text_scores.bleu.value,
            "chrf": text_scores.chrf.value,
            "degenerate": degenerate.share,
        }

        def sample(i: int) -> Sample:
            return Sample(self.sources[i], hypotheses[i], self.references[i])

        samples = [sample(i) for i in self.probes]
        failures = {kind: sample(rows[0]) for kind, rows in degenerate.rows.items()}
        tables = {"examples": samples, "failures": [*failures.values()]}
        return ValidationResult(
            scores,
            samples=["\n".join(sample.lines()) for sample in samples],
            markdown={name: as_markdown(rows) for name, rows in tables.items() if rows},
            warning=degenerate.warning(failures),
            draw=lambda: self.draw(translator),
        )

    def draw(self, translator: Translator) -> dict[str, Figure]:
        """Draw the last layer's cross-attention for the first example."""
        if not self.probes:
            return {}
        maps = translate_with_attention(translator, self.sources[self.probes[0]])
        return {"attention": maps.figure("cross", layer=len(translator.model.decoder.layers))}

    @torch.no_grad()
    def losses(self) -> dict[str, float]:
        """Return smoothed loss, negative log-likelihood and perplexity: means over the labels of the whole set."""
        model = self.model
        was_training = model.training
        model.eval()
        sums = torch.zeros(3, device=self.machine.device)
        for batch in self.stream.shortest_first(self.ranks.rank, self.ranks.size):
            with self.machine.autocast():
                loss, nll, _ = batch_loss(model, batch.to(self.machine.device), self.smoothing)
            sums += torch.stack([loss, nll, torch.full_like(nll, batch.n_tgt)])
        model.train(was_training)
        total_loss, total_nll, n_labels = map(float, self.ranks.all_reduce_sum([sums])[0])
        nll = total_nll / n_labels
        return {"loss": total_loss / n_labels, "nll": nll, "ppl": perplexity(nll)}
