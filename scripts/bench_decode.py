"""Benchmark translation: sentences per second compared with CTranslate2, and the latency of one sentence.

    python scripts/bench.py decode RUN --src F [--ref G] [--threads N] [--rounds N]

The sides are PyTorch in bf16 and fp32, the engine that `tmt translate` chooses (auto), and CTranslate2 itself: its
`translate_batch` for the ids of all sentences, with the same weights in fp32, and without our tokenizers and limits.
For each side and beam, the script first searches the best of several batch sizes; auto keeps the default. Then it
measures each side in its own subprocess, without loading, in interleaved rounds, so that the ratio hardly depends on
the machine. With --ref, it also prints BLEU, because speed without quality is worthless.

The latency is that of a sentence of about 15 words: for the whole command with each engine, and for each side once its
model is loaded.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import duration, positive_int

from transformer_mt.data.text_files import read_aligned_files, read_lines
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.flows.configuration import load as load_config
from transformer_mt.flows.translation import LoadOptions, load_translator
from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.export.ctranslate2_engine import CTranslate2Engine

LIBRARY = "ctranslate2"
SIDES = ("bf16", "fp32", "auto", LIBRARY)
PYTORCH_SIZES = (4096, 8192, 16384, 32768)
SIZES = {  # decoding.batch_tokens
    "bf16": PYTORCH_SIZES,
    "fp32": PYTORCH_SIZES,
    "auto": (DecodingConfig().batch_tokens,),
    LIBRARY: (512, 1024, 2048, 4096, 8192, 16384, 32768),
}
BEAMS = (1, 5)
WARM_UP = 100  # sentences before the measurement
WORDS = 15


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="bench.py decode", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="a run folder")
    parser.add_argument("--src", type=Path, required=True, help="sentences to translate")
    parser.add_argument("--ref", type=Path, help="their reference translations")
    parser.add_argument("--threads", default="auto", help="CPU threads of each side (default: one per core)")
    parser.add_argument("--rounds", type=positive_int, default=5, help="interleaved rounds")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--beam", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=int, nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.side:
        measure(args)
        return
    list(read_aligned_files(args.src, *([args.ref] if args.ref else [])))  # fails if the line counts differ
    for beam in BEAMS:
        compare(args, beam)
    measure_latency(args)


def compare(args: argparse.Namespace, beam: int) -> None:
    """Find the best batch size of each side, measure in interleaved rounds, and print rates and ratios."""
    sizes = {side: best_size(args, side, beam) for side in SIDES}
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    texts: dict[str, list[str]] = {}
    for _ in range(args.rounds):
        for side in SIDES:
            done = run_side(args, side, beam, [sizes[side]])
            rates[side].append(done["rates"][0])
            texts[side] = done["texts"]
    config = load_config(RunFolder.open(Path(args.run)).config)
    standard = Scorer.from_config(config.scoring, config.data.tgt_lang)
    for side in SIDES:
        ratios = [ours / theirs for ours, theirs in zip(rates[side], rates[LIBRARY], strict=True)]
        score = standard.score(texts[side], list(read_lines(args.ref)))["BLEU"] if args.ref else None
        bleu = f"  BLEU {score.value:.2f}" if score else ""
        print(
            f"beam {beam}  {side:11}  {statistics.median(rates[side]):7,.0f} sentences/s "
            f"(batches of {sizes[side]:,})  ratio {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}){bleu}",
            flush=True,
        )


def best_size(args: argparse.Namespace, side: str, beam: int) -> int:
    """Return the fastest batch size of a side."""
    sizes = SIZES[side]
    rates: list[float] = run_side(args, side, beam, sizes)["rates"]
    return max(zip(rates, sizes, strict=True))[1]


def run_side(args: argparse.Namespace, side: str, beam: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Run `measure` in a subprocess and return its result."""
    chosen = ["--side", side, "--beam", str(beam), "--sizes", *map(str, sizes)]
    common = ["decode", args.run, "--src", str(args.src), "--threads", str(args.threads)]
    script = str(Path(__file__).with_name("bench.py"))
    done = subprocess.run([sys.executable, script, *common, *chosen], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{side}: {done.stderr.strip()}")
    return json.loads(done.stdout)


# --- in the subprocess ------------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace) -> None:
    """Print sentences per second for each batch size, and the translations, as JSON."""
    texts = list(read_lines(args.src))
    translator = load(args, args.side, texts)
    rates: list[float] = []
    found: Sequence[str] = []
    for size in args.sizes:
        translator.translate(texts[:WARM_UP], batch_tokens=size)
        start = time.perf_counter()
        found = translator.translate(texts, batch_tokens=size)
        rates.append(len(texts) / (time.perf_counter() - start))
    if isinstance(translator, Library):
        found = translator.decode()
    print(json.dumps({"rates": rates, "texts": found}))


class Library:
    """CTranslate2 itself, which gets the ids of texts and returns ids."""

    def __init__(self, run: str, threads: str, beam: int, texts: Sequence[str]) -> None:
        options = LoadOptions(device="cpu", threads=threads)
        self.translator = load_translator(run, options, beam=beam, engine="ctranslate2")
        engine, self.config = self.translator.engine, self.translator.config
        assert isinstance(engine, CTranslate2Engine)
        self.engine = engine
        ((tag, _),) = self.translator.tag_ids([self.config.tag])
        ids = self.translator.encode(texts, range(len(texts)), len(texts) * [tag])
        self.sources = {text: [engine.src_vocabulary[i] for i in one] for text, one in zip(texts, ids, strict=True)}
        self.results: list[Any] = []

    def translate(self, texts: Sequence[str], batch_tokens: int = 32768) -> list[str]:
        """Translate the ids. `decode` returns the texts."""
        sources = [self.sources[text] for text in texts]
        self.results = self.engine.library.translate_batch(
            sources,
            beam_size=self.config.beam,
            length_penalty=self.config.length_penalty_exponent,
            max_decoding_length=self.config.max_target_tokens(max(map(len, sources))),
            max_input_length=0,
            max_batch_size=batch_tokens // self.config.beam,
            batch_type="tokens",
        )
        return []

    def decode(self) -> list[str]:
        """Return the texts of the last translations."""
        ids = [[self.engine.tgt_ids[token] for token in result.hypotheses[0]] for result in self.results]
        return self.translator.tokenizers.tgt.decode(ids)


def load(args: argparse.Namespace, side: str, texts: Sequence[str]) -> Translator | Library:
    """Load the translator of one side."""
    if side == LIBRARY:
        return Library(args.run, args.threads, args.beam, texts)
    precision, engine = ("auto", "auto") if side == "auto" else (side, "torch")
    options = LoadOptions(device="cpu", threads=args.threads, precision=precision, split="never", owns_process=True)
    return load_translator(args.run, options, beam=args.beam, engine=engine, guard=False)


# --- latency ----------------------------------------------------------------------------------------------------------


def measure_latency(args: argparse.Namespace) -> None:
    """Print how long the translation of one sentence takes."""
    text = min(read_lines(args.src), key=lambda line: abs(len(line.split()) - WORDS))
    command = [sys.executable, "-m", "transformer_mt", "translate", args.run, text]
    command += ["--device", "cpu", "--threads", str(args.threads)]
    durations: dict[str, list[float]] = {"torch": [], "auto": []}
    for _ in range(args.rounds):
        for engine, cold in durations.items():
            words = [*command, "--engine", engine]
            cold.append(duration(lambda: subprocess.run(words, check=True, capture_output=True)))  # noqa: B023
    for engine, cold in durations.items():
        seconds = statistics.median(cold)
        print(f"one sentence of {len(text.split())} words: {seconds:.2f} s for the whole command, engine {engine}")
    for beam in BEAMS:
        args.beam = beam
        times: dict[str, list[float]] = {side: [] for side in SIDES}
        translators = {side: load(args, side, [text]) for side in SIDES}
        for _ in range(10 * args.rounds):  # interleaved, so that the ratio hardly depends on the machine
            for side, translator in translators.items():
                times[side].append(duration(lambda: translator.translate([text])))  # noqa: B023
        for side in SIDES:
            ratio = statistics.median(ours / theirs for ours, theirs in zip(times[side], times[LIBRARY], strict=True))
            milliseconds = 1000 * statistics.median(times[side])
            print(f"once loaded, beam {beam}, {side:11}: {milliseconds:5.1f} ms  ratio {ratio:.2f}")
