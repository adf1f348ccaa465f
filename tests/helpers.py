"""Assertions and readers that several test modules share. Fixtures are in conftest.py."""

from __future__ import annotations

import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from transformer_mt.choices import SplitWhen
    from transformer_mt.data.batches import Batch, BatchModifier, BatchStream
    from transformer_mt.data.encoding import EncodedCorpus
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.model.transformer import Transformer
    from transformer_mt.tools.serving.models import ModelOptions

Tmt = Callable[..., "CompletedProcess[str]"]
"""The type of the fixture `tmt`."""

LONG_TEST = pytest.mark.skipif("TMT_LONG_TESTS" not in os.environ, reason="takes minutes; set TMT_LONG_TESTS=1")


RUN_RECORD: dict[str, Any] = {
    "provenance": {"created": "", "versions": {"transformer-mt": "0.2.0"}, "system": "Linux", "hardware": "CPU"},
    "parameters": 1,
    "report": [],
    "sha256": {"train": "", "validation": ""},
}
"""The required keys of `run.json`, except its format."""


@contextmanager
def plain_torch() -> Generator[None]:
    """Turn the CPU kernels off inside the block, for the whole process."""
    from transformer_mt.model import cpu_kernels

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_kernels, "ENABLED", False)
        yield


def make_modified_stream(corpus: EncodedCorpus, modifier: BatchModifier) -> BatchStream:
    """Return the stream of the modified batches of a corpus."""
    from transformer_mt.data.batches import BatchPlan, BatchReader, BatchStream

    reader = BatchReader(corpus, modifier.tokenizers)
    read_lengths = partial(reader.read_lengths, growth=modifier.measure_growth(reader))
    return BatchStream(BatchPlan(reader.bounds, read_lengths, modifier.tokens, modifier.seed), reader, modifier)


def assert_succeeded(done: CompletedProcess[str]) -> str:
    """Check that the command exited with status 0, and return its standard output."""
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_user_error(done: CompletedProcess[str], *parts: str) -> None:
    """Check for exit status 2 and a final message of at most 4 lines that contains each of `parts`."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    message = re.split(r"^(?=tmt[ \w]*: )", done.stderr, maxsplit=1, flags=re.MULTILINE)[-1]
    assert message.startswith("tmt")
    assert 1 <= len(message.strip().split("\n")) <= 4
    for part in parts:
        assert part in message


def load_plain(
    run: str | Path,
    checkpoint: str = "best",
    device: str = "auto",
    threads: int | str = "auto",
    precision: str = "auto",
    ensemble: str | Path | Sequence[str | Path] = (),
    **decoding: object,
) -> Translator:
    """Load a run with PyTorch, to translate lines whole and without the guard."""
    from transformer_mt import LoadOptions, load_translator

    others = [ensemble] if isinstance(ensemble, str | Path) else ensemble
    options = LoadOptions(checkpoint, device, threads, precision, others, split="never")
    return load_translator(run, options, **{"engine": "torch", "guard": False, **decoding})


def make_model_options(split: SplitWhen = "auto", **decoding: object) -> ModelOptions:
    """Return options of a server that loads its models on one thread."""
    from transformer_mt.flows.translation import LoadOptions, load_translator
    from transformer_mt.tools.serving.models import ModelOptions

    options = LoadOptions(device="cpu", threads=1, split=split)
    return ModelOptions(lambda path: load_translator(path, options, **decoding))


def add_noise(model: Transformer, seed: int) -> None:
    """Add noise to the weights, so that translations are long and differ, but hold none of the 256 byte tokens."""
    import torch

    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.data += 0.4 * torch.randn_like(parameter)
    model.encoder.embedding.tokens.weight.data[:256] = 0


def forget_lengths(run: Path) -> None:
    """Remove the recorded lengths of a run that was trained on few words, so that it translates longer texts whole."""
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert record.pop("lengths")
    (run / "run.json").write_text(json.dumps(record), encoding="utf-8")


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when the condition is true, or fail after a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def read_folder(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder. Keys are paths relative to the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_metrics(run: Path) -> dict[str, dict[int, float]]:
    """Read metrics.jsonl of a run: name -> step -> value. Check that no value occurs twice."""
    metrics: dict[str, dict[int, float]] = defaultdict(dict)
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        step = entry.pop("step")
        for name, value in entry.items():
            assert step not in metrics[name], f"{name} occurs twice at step {step}"
            metrics[name][step] = value
    return dict(metrics)


def read_events(run: Path, part: str = "") -> Any:
    """Read the TensorBoard events of a run: those of the sub-folder `part`, or those beside the sub-folders."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard" / part), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def read_curves(run: Path) -> dict[str, dict[int, float]]:
    """Read TensorBoard's curves of a run, with the names of metrics.jsonl: name -> step -> value."""
    curves: dict[str, dict[int, float]] = {}
    for part in ("train", "valid", "test", ""):
        if not (run / "tensorboard" / part).exists():
            continue
        events = read_events(run, part)
        for tag in events.Tags()["scalars"]:
            name = f"{part}/{tag.rpartition('/')[2]}" if part in ("train", "valid") else tag
            curves[name] = {event.step: event.value for event in events.Scalars(tag)}
            assert len(curves[name]) == len(events.Scalars(tag)), f"{name} has a step twice"
    return curves


def parse_page(page: str, scripts: int = 0) -> Any:
    """Parse an HTML page, and return its root element. Check that it is valid, and loads nothing.

    It has as many scripts as `scripts` says.
    """
    import html5lib

    document = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)  # raises the first error
    ids = [element.attrib["id"] for element in document.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids)), "an id occurs twice"
    assert sum(str(element.tag).endswith("script") for element in document.iter()) == scripts
    for element in document.iter():
        name_of_tag = str(element.tag).rpartition("}")[2]  # those of SVG have a namespace
        assert name_of_tag not in {"link", "iframe", "object", "embed", "base", "use", "image"}
        for name, value in element.attrib.items():
            assert not str(name).startswith("on"), f"{name} runs a script"
            if name in {"src", "href", "srcset", "action", "poster", "data"} or "xlink" in str(name):
                assert value.startswith("data:") or value.removeprefix("#") in ids, f"{name} {value} is not in the page"
        styles = [element.attrib.get("style", ""), element.text or "" if element.tag == "style" else ""]
        assert not any(text in style for style in styles for text in ("url(", "@import"))
    return document


def assert_no_empty_part(page: Any) -> None:
    """Assert that each table, list and figure has content, and that something follows each heading."""
    filled = {"table", "ul", "ol", "dl", "pre", "figure", "summary", "h1", "h2", "h3"}
    for element in page.iter():
        assert element.tag not in filled or "".join(element.itertext()).strip(), f"an empty {element.tag}"
    for parent in page.iter():
        for tag, following in pairwise([*(child.tag for child in parent), "end"]):
            assert tag not in ("h2", "h3") or following not in ("h1", "h2", "script", "end", *(["h3"] * (tag == "h3")))


def random_batch(n_pairs: int, src_length: int, tgt_length: int, n_ids: int, pad: int) -> Batch:
    """Return a batch of random ids below `n_ids`, of which the first pair is shorter."""
    import numpy as np
    import torch

    from transformer_mt.data.batches import Batch

    sizes = ((n_pairs, src_length), (n_pairs, tgt_length))
    src, labels = (torch.randint(n_ids - 1, size) for size in sizes)
    src, labels = (ids + (ids >= pad) for ids in (src, labels))
    src[0, -2:] = labels[0, -3:] = pad
    tgt_in = torch.where(labels == pad, pad, labels.roll(1, 1))
    n_src, n_tgt = (int((ids != pad).sum()) for ids in (src, labels))
    return Batch(src, tgt_in, labels, n_src, n_tgt, np.arange(n_pairs, dtype=np.int32))
