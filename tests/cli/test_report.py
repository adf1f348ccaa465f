"""`tmt report`: the page of one run and of several, and wrong arguments."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error, load_plain, parse_page, read_folder

from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.tools.analysis.breakdown import compare_sentences
from transformer_mt.tools.analysis.significance import score_systems

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
    return parse_page(output.read_text(encoding="utf-8"))


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


def test_page_of_a_run_has_its_scores_and_sentences(run_copy: Path, tmt: Tmt) -> None:
    before = read_folder(run_copy)
    page = make_page(tmt, run_copy)
    assert {name: content for name, content in read_folder(run_copy).items() if name != "report.html"} == before
    hypotheses = load_plain(run_copy).translate(lines("test.en"))
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
    unchanged = SCORER.score(hypotheses, lines("test.de"))["BLEU"].value
    assert ["unchanged", f"BLEU {unchanged:.2f}"] in rows


def test_page_of_a_run_has_data_settings_curves_attention_and_cost(run_copy: Path, tmt: Tmt) -> None:
    page = make_page(tmt, run_copy)
    record = json.loads((run_copy / "run.json").read_text(encoding="utf-8"))
    rows = rows_of(page)
    for name, n_pairs, file in (("train", "50", "train"), ("validation", "8", "valid"), ("unseen", "6", "test")):
        assert [name, n_pairs, f"{file}.en, {file}.de", record["sha256"][name]] in rows
    assert ["tokenizer.vocab_size", "8000", "340"] in rows
    assert ["seed", "1"] in rows
    assert ["parameters", f"{record['parameters']:,}"] in rows
    labels = [drawing.attrib.get("aria-label", "") for drawing in page.iter(SVG)]
    for title in ("Loss by step", "BLEU of", "Learning rate", "Target tokens per second", "chrF by words"):
        assert any(label.startswith(title) for label in labels)
    attention = [table for table in page.iter("table") if table.attrib.get("class") == "grid"]
    assert len(attention) == 3
    for table in attention:
        weights = [[int(cell) for cell in row[1:]] for row in rows_of(table)[1:]]
        assert all(sum(row) == pytest.approx(100, abs=len(row) / 2) for row in weights)
    checkout = f"git checkout {record['provenance']['commit']}".removesuffix("-dirty")
    assert f"{checkout} pip install -c constraints.txt -e . tmt train --config " in text_of(page)


@pytest.fixture
def second_run(run_copy: Path) -> Path:
    """A copy of the run with another name and other search options."""
    second = run_copy.with_name("second")
    shutil.copytree(run_copy, second)
    config = (second / "config.yaml").read_text(encoding="utf-8")
    config = config.replace("name: tiny", "name: second").replace("  beam: 5", "  beam: 1")
    (second / "config.yaml").write_text(config, encoding="utf-8")
    return second


def test_several_runs_are_compared_on_one_page(run_copy: Path, second_run: Path, tmt: Tmt) -> None:
    page = make_page(tmt, run_copy, second_run, "--src", "valid.en", "--ref", "valid.de")
    systems = [load_plain(run).translate(lines("valid.en")) for run in (run_copy, second_run)]
    rows = rows_of(page)
    for metric, comparison in score_systems(systems, lines("valid.de"), SCORER).items():
        first, second = comparison.systems
        assert [metric, "tiny", f"{first.score:.2f}"] in [row[:3] for row in rows]
        p = "" if second.p_bootstrap is None else f"{second.p_bootstrap:.4f}"
        expected = ["second", f"{second.score:.2f}", f"{second.difference:+.2f}", p]
        assert expected in [row[:2] + row[3:] for row in rows]
        assert [metric, comparison.signature] in rows
    assert ["decoding.beam", "5", "1"] in rows
    assert Path("report.html").exists()
    assert not (run_copy / "report.html").exists()


def test_text_of_the_test_set_never_becomes_html(run_copy: Path, tmt: Tmt) -> None:
    hostile = "<script>alert(1)</script>\x1b[31m\u202e"
    Path("bad.en").write_text(f"{hostile}\none two three\n\n", encoding="utf-8")
    Path("bad.de").write_text(f"{hostile}\neins zwei drei\n\n", encoding="utf-8")
    page = make_page(tmt, run_copy, "--src", "bad.en", "--ref", "bad.de", "--output", "page.html")
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
    for name in ("unseen", "validation"):
        assert f"tmt: warning: {run_copy}: {name} is left out: its text cannot be read" in done.stderr
        assert f"{name} is left out: its text cannot be read" in text_of(page)
    assert any(row[0] == "unseen, bleu" for row in rows_of(page))
    assert not any(element.attrib.get("id") in ("sentences", "curves") for element in page.iter())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/tiny", "runs/tiny"], "runs/tiny: is given twice"),
        (["tinny"], "did you mean runs/tiny?"),
        (["runs/tiny", "--output", "page.txt"], "pass a name that ends in .html"),
        (["runs/tiny", "--src", "valid.en", "--ref", "test.de"], "test.de"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str, run_copy: Path, tmt: Tmt) -> None:
    before = read_folder(Path())
    assert_user_error(tmt("report", *arguments), message)
    assert read_folder(Path()) == before


def test_runs_of_different_languages_are_refused(run_copy: Path, second_run: Path, tmt: Tmt) -> None:
    config = (second_run / "config.yaml").read_text(encoding="utf-8").replace("tgt_lang: de", "tgt_lang: nl", 1)
    (second_run / "config.yaml").write_text(config, encoding="utf-8")
    message = f"{second_run}: translates en into nl, and {run_copy} translates en into de"
    assert_user_error(tmt("report", run_copy, second_run), message)
