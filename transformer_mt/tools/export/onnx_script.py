# pyright: basic, reportAttributeAccessIssue=false
"""Translate lines with the settings of the run: python translate.py [TAG] < F > G.

Needs only onnxruntime, tokenizers and numpy. `Model` and `search` can be imported, too.

`N` beams of all sentences, `B` sentences, `S` source length, `V` vocabulary.
"""

import json
from itertools import groupby
from pathlib import Path

import numpy as np
import onnxruntime


class Model:
    """Encoder and decoder of an exported folder."""

    def __init__(self, folder, providers=("CPUExecutionProvider",)):
        """Load the folder."""
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.src_ids, self.tgt_ids = self.config["src_ids"], self.config["tgt_ids"]  # of the control symbols
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), providers=[*providers])
            for name in ("encoder", "decoder")
        )

    def encode(self, sources):
        """Pad B lists of ids and encode them. Return the padded ids [B, S], the memory and an empty cache."""
        rows = [[*self.config["source_start"], *ids, *self.config["source_end"]] for ids in sources]
        width, pad = max(map(len, rows)), self.src_ids["<pad>"]
        src = np.array([row + [pad] * (width - len(row)) for row in rows], np.int64)
        shape = self.config["n_layers"], 2, len(src), self.config["n_kv_heads"], 0, self.config["d_head"]
        return src, self.encoder.run(None, {"src": src})[0], np.zeros(shape, np.float32)

    def step(self, tokens, src, memory, cache):
        """Append a token to each beam. Return log-probabilities of the next [N, V], and the longer cache."""
        inputs = {"tokens": np.array(tokens, np.int64)[:, None], "src": src, "memory": memory, "cache": cache}
        logits, cache = self.decoder.run(None, inputs)
        logits = logits - logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True)), cache


def search(model, sources, limit, tag, decoding):
    """Translate lists of ids by beam search, or greedily with a beam of 1. Translations start with the ids in `tag`.

    Return the best translation of each source, and whether EOS is among its up to `limit` tokens.
    """
    n_beams, bos, eos = decoding["beam"], model.tgt_ids["<s>"], model.tgt_ids["</s>"]
    src, memory, cache = model.encode(sources)
    for token in [bos, *tag][:-1]:
        _, cache = model.step([token] * len(src), src, memory, cache)
    live = [(row, 0.0, [*tag]) for row in range(len(src))]  # source, log-probability and ids of each beam
    finished, rows = [[] for _ in sources], []  # score and ids of translations with EOS; sources of the beams
    for length in range(len(tag) + 1, limit + 1):  # with the next token
        if rows != (rows := [row for row, *_ in live]):
            beam_src, beam_memory = src[rows], memory[:, :, rows]
        tokens = [[bos, *ids][-1] for *_, ids in live]
        log_probs, cache = model.step(tokens, beam_src, beam_memory, cache)
        if length <= decoding["min_length"] + len(tag):
            log_probs[:, eos] = -np.inf
        log_probs += np.array([[score] for _, score, _ in live], np.float32)
        extended, parents = [], []
        for row, group in groupby(range(len(live)), rows.__getitem__):
            beams = [*group]
            scores = log_probs[beams].ravel()
            best = np.argpartition(-scores, min(2 * n_beams, len(scores)) - 1)[: 2 * n_beams]
            best = best[np.argsort(-scores[best], kind="stable")]
            first = len(extended)
            for rank, index in enumerate(best[scores[best] > -np.inf]):
                beam, token = beams[index // log_probs.shape[1]], int(index) % log_probs.shape[1]
                if token != eos and len(extended) < first + n_beams:
                    extended.append((row, scores[index], [*live[beam][2], token]))
                    parents.append(beam)
                elif token == eos and rank < n_beams:
                    normalized = scores[index] / length ** decoding["length_penalty_exponent"]
                    finished[row].append((normalized, live[beam][2]))
        kept = [i for i, (row, *_) in enumerate(extended) if len(finished[row]) < n_beams]
        live = [extended[i] for i in kept]
        if length == limit or not live:
            break
        cache = cache[:, :, [parents[i] for i in kept]]
    cut = {row: ids for row, _, ids in reversed(live)}  # the best beam of each source
    return [(max(found)[1], True) if found else (cut.get(row, []), False) for row, found in enumerate(finished)]


if __name__ == "__main__":
    from exported_lines import translate_lines  # pyright: ignore[reportMissingImports]

    here = Path(__file__).resolve().parent
    model = Model(here)

    def translate(sources, limit, src_tag, tgt_tag, decoding):
        """Translate lists of ids."""
        before, tag = [model.src_ids[each] for each in src_tag], [model.tgt_ids[each] for each in tgt_tag]
        found = search(model, [before + ids for ids in sources], limit, tag, decoding)
        return [[i for i in ids if i < model.tgt_ids["<pad>"]] for ids, _ in found]

    translate_lines(here, translate)
