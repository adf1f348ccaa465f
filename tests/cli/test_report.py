"""`tmt report`: the page of a run, and wrong arguments."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import Tmt, assert_no_empty_part, assert_succeeded, assert_user_error, parse_page, read_folder

from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.flows import configuration
from transformer_mt.tools.analysis.significance import compare_sentences, score_systems

pytestmark = pytest.mark.usefixtures("few_samples")

SCORER = Scorer("13a", "de")
MAX_BYTES = 3_000_000
SVG = "{http://www.w3.org/2000/svg}svg"


def lines(name: str) -> list[str]:
    return Path(name).read_text(encoding="utf-8").split("\n")[:-1]


def make_page(tmt: Tmt, *arguments: object) -> Any:
    """Run `tmt report`, and return the root element of its page, which must be valid and small."""
    output = Path(assert_succeeded(tmt("report", *arguments)).strip())
    assert output.stat().st_size < MAX_BYTES
    page = parse_page(output.read_text(encoding="utf-8"))
    assert_no_empty_part(page)
    return page


def text_of(element: Any) -> str:
    return re.sub(r"\s+", " ", "".join(element.itertext())).strip()


def rows_of(page: Any) -> list[list[str]]:
    """Return the rows of all tables as text, cell by cell."""
    return [[text_of(cell) for cell in row if cell.tag in ("th", "td")] for row in page.iter("tr")]


ODD_LINES = {
    "step of more than 64 bits": '{"step": 99999999999999999999, "train/loss": 1.0}',
    "negative step": '{"step": -5, "train/loss": 1.0}',
    "step is a fraction": '{"step": 2.5, "train/loss": 1.0}',
    "step is true": '{"step": true, "train/loss": 1.0}',
    "no step": '{"train/loss": 1.0}',
    "value of more than 64 bits": '{"step": 3, "train/loss": 1' + "0" * 400 + "}",
    "value is text": '{"step": 3, "train/loss": "low"}',
    "value is a list": '{"step": 3, "train/loss": [1]}',
    "value is null": '{"step": 3, "valid/bleu": null}',
    "not an object": "[3]",
    "number with an exponent": '{"step": 3, "train/loss": 1e999}',
    "not JSON": '{"step": 3, "train/lo',
}


@pytest.mark.parametrize("line", ODD_LINES.values(), ids=ODD_LINES)
def test_odd_lines_of_the_curves_do_no_harm(line: str, run_copy: Path, tmt: Tmt) -> None:
    with (run_copy / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    for command in (("report", run_copy), ("runs",), ("train", "--config", "tiny.yaml", "train.max_steps=14")):
        assert_succeeded(tmt(*command))


def test_page_of_a_run_has_scores_and_sentences_of_tmt_translate(run_copy: Path, tmt: Tmt) -> None:
    before = read_folder(run_copy)
    page = make_page(tmt, run_copy)
    assert {name: content for name, content in read_folder(run_copy).items() if name != "report.html"} == before
    assert_succeeded(tmt("translate", run_copy, "--input", "test.en", "--output", "out.de"))
    hypotheses = lines("out.de")
    rows = rows_of(page)
    for metric, found in score_systems([hypotheses], lines("test.de"), SCORER).items():
        own = found.baseline
        assert own.interval is not None
        assert [metric, f"{own.score:.2f}", "{:.2f} to {:.2f}".format(*own.interval)] in rows
        assert [metric, found.signature] in rows
    found = compare_sentences([hypotheses], lines("test.en"), lines("test.de"), SCORER)
    worst = min(found, key=lambda sentence: (sentence.chrf[0], len(sentence.reference)))
    titles = [text_of(title) for title in page.iter("h3")]
    assert "Worst translations by chrF" in titles
    first = next(element for element in page.iter("dl"))
    assert [text_of(each) for each in first.iter("dd")] == [worst.source, worst.translations[0], worst.reference]


def test_page_of_a_run_has_data_settings_curves_and_cost(run_copy: Path, tmt: Tmt) -> None:
    record = json.loads((run_copy / "run.json").read_text(encoding="utf-8"))
    record["provenance"]["commit"] = "0123abcd-dirty"
    (run_copy / "run.json").write_text(json.dumps(record), encoding="utf-8")
    page = make_page(tmt, run_copy)
    rows = rows_of(page)
    for name, n_pairs, file in (("train", "50", "train"), ("validation", "8", "valid"), ("unseen", "6", "test")):
        assert [name, n_pairs, f"{file}.en, {file}.de", record["sha256"][name]] in rows
    assert ["parameters", f"{record['parameters']:,}"] in rows
    labels = [drawing.attrib.get("aria-label", "") for drawing in page.iter(SVG)]
    for title in ("Loss by step", "BLEU of", "Learning rate", "Target tokens per second"):
        assert any(label.startswith(title) for label in labels)
    settings = next(text for text in map("".join, (each.itertext() for each in page.iter("pre"))) if "model:" in text)
    config = configuration.load(run_copy / "config.yaml")
    shown = yaml.safe_load(settings)
    assert shown["tokenizer"]["vocab_size"] == config.tokenizer.vocab_size
    assert shown["model"]["d_model"] == config.model.d_model
    assert "train" not in shown["data"]
    assert "git checkout 0123abcd pip install -c constraints.txt -e . tmt train --config " in text_of(page)


@pytest.mark.parametrize(
    ("record", "launcher"),
    [
        (
            {"processes": 8, "local_processes": 4},
            "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint FIRST_HOST:29500 --nproc-per-node 4 -m",
        ),
        ({"processes": 4, "local_processes": 4}, "torchrun --nproc-per-node 4 -m"),
        ({"processes": 4, "local_processes": None}, "torchrun --nproc-per-node 4 -m"),  # of an earlier version
    ],
)
def test_the_command_starts_the_processes_of_the_run(
    record: dict[str, int | None], launcher: str, run_copy: Path, tmt: Tmt
) -> None:
    path = run_copy / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **record}), encoding="utf-8")
    assert f"{launcher} transformer_mt train --config " in text_of(make_page(tmt, run_copy))


@pytest.mark.filterwarnings("default")  # there are no translations without a test set
@pytest.mark.parametrize("has_directions", [True, False])
def test_an_imported_run_names_its_model_and_is_not_trained_again(
    has_directions: bool, run_copy: Path, tmt: Tmt
) -> None:
    path, config = run_copy / "run.json", run_copy / "config.yaml"
    record = json.loads(path.read_text(encoding="utf-8")) | {"sha256": {"train": "unknown"}, "sizes": {}}
    path.write_text(json.dumps(record), encoding="utf-8")
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    train: object = {"pretrained": "org/opus-mt (marian)"}
    if has_directions:
        train = [{"name": name, "pretrained": "org/opus-mt (marian)"} for name in ("a", "b")]
    settings["data"] |= {"train": train, "validation": None}
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    page = make_page(tmt, run_copy)
    assert ["train", "unknown", "org/opus-mt (marian)", "unknown"] in rows_of(page)
    assert "tmt train" not in text_of(page) and "split off" not in text_of(page)


@pytest.mark.filterwarnings("default")
def test_text_of_the_test_set_never_becomes_html(run_copy: Path, tmt: Tmt) -> None:
    hostile = "<script>alert(1)</script>\x1b[31m\u202e"
    Path("test.en").write_text(f"{hostile}\none two three\n\n", encoding="utf-8")
    Path("test.de").write_text(f"{hostile}\neins zwei drei\n\n", encoding="utf-8")
    page = make_page(tmt, run_copy, "--output", "page.html")
    assert "the text of unseen has changed" in text_of(page)
    shown = r"<script>alert(1)</script>\x1b[31m\u202e"
    assert sum(text_of(each) == shown for each in page.iter("dd")) >= 2  # source and reference


@pytest.mark.filterwarnings("default")
def test_a_run_whose_text_is_gone_has_a_page_with_a_note(run_copy: Path, tmt: Tmt) -> None:
    for file in Path().glob("*.[de][en]"):
        file.unlink()
    (run_copy / "metrics.jsonl").unlink()
    shutil.rmtree("runs/.cache")
    done = tmt("report", run_copy)
    assert_succeeded(done)
    page = parse_page((run_copy / "report.html").read_text(encoding="utf-8"))
    assert_no_empty_part(page)
    for name in ("unseen", "validation"):
        assert f"tmt: warning: {run_copy}: {name} " in done.stderr
        assert f"{name} is left out: its text cannot be read" in text_of(page)
    assert any(row[0] == "unseen, bleu" for row in rows_of(page))
    assert not any(element.attrib.get("id") in ("sentences", "curves") for element in page.iter())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tinny"], "did you mean runs/tiny?"),
        (["runs/tiny", "--output", "page.txt"], "pass a name that ends in .html"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str, run_copy: Path, tmt: Tmt) -> None:
    before = read_folder(Path())
    assert_user_error(tmt("report", *arguments), message)
    assert read_folder(Path()) == before
