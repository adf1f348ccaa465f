"""`tmt evaluate`: test sets of a run, two files, a file of translations, and wrong arguments."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest
import sacrebleu
from helpers import Tmt, assert_succeeded, assert_user_error, load_plain

from transformer_mt import Translator, __version__
from transformer_mt.decoding import engine as loading
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.analysis.significance import score_systems

FILES = ("--src", "valid.en", "--ref", "valid.de")
HYP = ("test.de", "--ref", "train6.de")
TITLE = "        score  95 % interval     signature"


@pytest.fixture
def texts(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with copies of the texts of the tiny run, and some other files."""
    for path in tiny.glob("*.??"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    first = (tmp_path / "train.de").read_text(encoding="utf-8").split("\n")[:6]
    (tmp_path / "train6.de").write_text("\n".join([*first, ""]), encoding="utf-8")
    (tmp_path / "empty").write_text("")
    (tmp_path / "latin").write_bytes(b"na\xefve\n")
    return tmp_path


@pytest.fixture
def run_copy(tiny_run: Path, texts: Path) -> Path:
    """Copy the tiny run, so that the test may change it."""
    return shutil.copytree(tiny_run, texts / "runs" / "copy")


def lines_of(path: Path | str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").split("\n")[:-1]


def in_json(tmt: Tmt, *arguments: object) -> dict[str, Any]:
    done = tmt("evaluate", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rows(hypotheses: list[str], references: list[str]) -> list[list[str]]:
    """Return the words of the printed table."""
    printed: list[list[str]] = [[*TITLE.split()]]
    for name, found in score_systems([hypotheses], references, Scorer("13a", "de")).items():
        own = found.baseline
        low, high = own.interval or (0, 0)
        printed.append([name, f"{own.score:.2f}", f"{low:.2f}", "to", f"{high:.2f}", found.signature])
    return printed


# --- a run ------------------------------------------------------------------------------------------------------------


def test_a_run_with_n_best_is_scored_by_its_best_translations(run_copy: Path, tmt: Tmt) -> None:
    text = (run_copy / "config.yaml").read_text(encoding="utf-8")
    (run_copy / "config.yaml").write_text(text.replace("n_best: 1", "n_best: 3"), encoding="utf-8")
    done = tmt("evaluate", run_copy, *FILES, "--beam", 1)
    assert done.returncode == 0, done.stderr


def test_scores_equal_sacrebleu_on_the_translations(texts: Path, tiny_run: Path, tmt: Tmt) -> None:
    """Trap 36."""
    done = tmt("evaluate", tiny_run, *FILES)
    hypotheses = tmt("translate", tiny_run, "--input", "valid.en").stdout.split("\n")[:-1]
    name, *found, end = done.stdout.split("\n")
    assert re.fullmatch(r"valid\.en \(8 pairs, beam 5, step \d+, torch, \d+\.\d s\)", name)
    assert ([line.split() for line in found], end) == (rows(hypotheses, lines_of("valid.de")), "")


@pytest.mark.filterwarnings("default")
def test_a_changed_test_set_gives_a_warning(run_copy: Path, tmt: Tmt) -> None:
    assert "warning" not in tmt("evaluate", run_copy).stderr
    text = Path("test.en").read_text(encoding="utf-8")
    Path("test.en").write_text(text.replace("one", "two"), encoding="utf-8")
    done = tmt("evaluate", run_copy)
    assert done.returncode == 0
    assert f"tmt: warning: the text of unseen has changed since {run_copy} was trained" in done.stderr


def test_the_test_sets_of_the_run_are_the_default(texts: Path, tiny_run: Path, tmt: Tmt) -> None:
    done = tmt("evaluate", tiny_run, "--show", 2)
    *samples, name, _, bleu, chrf, _, _, end = done.stdout.split("\n")
    assert [line for line in samples if "source" in line] == [
        f"  source     {text}" for text in lines_of("test.en")[:2]
    ]
    assert (name.startswith("unseen (6 pairs, "), end) == (True, "")
    saved = json.loads(RunFolder(tiny_run).metadata.read_text(encoding="utf-8"))["test"]["unseen"]
    for row, metric in ((bleu, "bleu"), (chrf, "chrf")):
        assert row.split()[1] == f"{saved[metric]['value']:.2f}"
        assert row.split()[-1].replace("bs:1000|seed:12345|", "") == saved[metric]["signature"]


def test_the_chosen_checkpoint_is_scored(texts: Path, tiny_run: Path, tmt: Tmt) -> None:
    done = tmt("evaluate", tiny_run, *FILES, "--checkpoint", "8", "--show", 1)
    first = lines_of("valid.en")[0]
    assert f"  model      {load_plain(tiny_run, '8').translate([first])[0]}" in done.stdout.split("\n")
    assert "(8 pairs, beam 5, step 8, " in done.stdout
    assert_user_error(tmt("evaluate", tiny_run, *FILES, "--checkpoint", "999"), "best, last and the steps 8, 12")


def test_json_contains_all_results(texts: Path, tiny_run: Path, tmt: Tmt) -> None:
    found = in_json(tmt, tiny_run, *FILES, "--beam", 1, "--checkpoint", "last", "--output", "out")
    found_set = found["test_sets"].pop("valid.en")
    assert found["test_sets"] == {}
    assert (found["tmt"], found["run"], found["checkpoint"]) == (__version__, str(tiny_run), "last")
    assert (found["step"], found["search"], found["decoding"]["beam"], found["text"]) == (12, "greedy", 1, "raw")
    assert (found["precision"] in ("fp32", "bf16"), found["tgt_lang"]) == (True, "de")
    assert (found_set["pairs"], found_set["seconds"] > 0) == (8, True)
    assert list(found_set["metrics"]) == ["bleu", "chrf", "chrf++", "ter"]
    assert lines_of("out") == tmt("translate", tiny_run, "--input", "valid.en", "--beam", 1).stdout.split("\n")[:-1]
    ter = sacrebleu.TER()
    by_hand = ter.corpus_score(lines_of("out"), [lines_of("valid.de")], n_bootstrap=1000)
    measured = found_set["metrics"]["ter"]
    low, high = measured["interval"]
    assert (measured["value"], measured["signature"]) == (by_hand.score, str(ter.get_signature()))
    assert high - low == pytest.approx(2 * by_hand._ci, abs=1e-4)
    # the written translations have the same scores
    again = in_json(tmt, "out", "--ref", "valid.de", "--tgt-lang", "de")
    assert again["test_sets"]["valid.de"] == {**found_set, "seconds": None}


def test_lines_that_the_guard_repairs_are_counted(texts: Path, tiny_run: Path, tmt: Tmt) -> None:
    Path("f").write_text("one two https://example.org/a three\none\n")
    Path("g").write_text("eins\nzwei\n")
    done = tmt("evaluate", tiny_run, "--src", "f", "--ref", "g", "--decoding", "guard=true")
    assert_succeeded(done)
    assert "f: lines with a visible fault in the translation: 1 repaired" in done.stderr


def test_robustness_is_scored_on_changed_copies_of_the_test_set(texts: Path, tiny_run: Path, tmt: Tmt) -> None:
    found = in_json(tmt, tiny_run, *FILES, "--robustness")["test_sets"]["valid.en"]
    scores = {each["name"]: each for each in found["robustness"]}
    assert scores["unchanged"]["bleu"] == pytest.approx(found["metrics"]["bleu"]["value"])
    translator = load_plain(tiny_run)
    hypotheses = translator.translate([line.upper() for line in lines_of("valid.en")])
    references = [line.upper() for line in lines_of("valid.de")]
    assert scores["upper case"]["bleu"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [references]).score)
    assert 0 <= scores["emoji"]["kept"] <= 1 and scores["upper case"]["kept"] is None
    done = tmt("evaluate", tiny_run, *FILES, "--robustness")
    assert re.search(r"^upper case +8 ", done.stdout, re.MULTILINE)


def test_a_run_on_moses_text_is_scored_on_plain_text(run_copy: Path, tiny_run: Path, texts: Path, tmt: Tmt) -> None:
    """Translations and references are detokenized, and case is ignored."""
    config = (run_copy / "config.yaml").read_text(encoding="utf-8")
    (run_copy / "config.yaml").write_text(re.sub(r"\n  text: raw", "\n  text: moses", config), encoding="utf-8")
    (texts / "ref").write_text("".join(f"{text} , &quot; Eins &quot;\n" for text in lines_of("valid.de")))
    found = in_json(tmt, run_copy, "--src", "valid.en", "--ref", "ref", "--output", "out")
    bleu = sacrebleu.BLEU(lowercase=True)
    by_hand = bleu.corpus_score(lines_of("out"), [[f'{text}, "eins"' for text in lines_of("valid.de")]], n_bootstrap=9)
    measured = found["test_sets"]["valid.en"]["metrics"]
    assert (found["text"], measured["bleu"]["value"]) == ("moses", by_hand.score)
    assert "|case:lc|" in measured["bleu"]["signature"] and "|case:lc|" in measured["chrf"]["signature"]


# --- a file -----------------------------------------------------------------------------------------------------------


def test_a_file_of_translations_is_scored(texts: Path, tmt: Tmt) -> None:
    done = tmt("evaluate", *HYP)
    title, *found, end = done.stdout.split("\n")
    assert (title, end) == ("train6.de (6 pairs)", "")
    assert [line.split() for line in found] == rows(lines_of("test.de"), lines_of("train6.de"))
    assert in_json(tmt, *HYP)["hypotheses"] == "test.de"


def test_a_file_of_moses_tokens_is_detokenized(texts: Path, tmt: Tmt) -> None:
    Path("hyp").write_text("&quot; Eins , zwei ! &quot;\n")
    Path("ref").write_text("&quot; eins , zwei ! &quot;\n")
    options = ("hyp", "--ref", "ref", "--tgt-lang", "de")
    found = in_json(tmt, *options, "--text", "moses")["test_sets"]["ref"]["metrics"]
    assert found["bleu"]["value"] == pytest.approx(100)
    assert "|case:lc|" in found["bleu"]["signature"]
    assert in_json(tmt, *options)["test_sets"]["ref"]["metrics"]["bleu"]["value"] < 100


# --- mistakes ---------------------------------------------------------------------------------------------------------

RUN_OPTIONS = {"--batch-tokens": 2, "--checkpoint": "last", "--output": "out"}


def test_options_of_runs_are_refused_for_a_file(texts: Path, tmt: Tmt) -> None:
    done = tmt("evaluate", *HYP, *(word for option in RUN_OPTIONS.items() for word in option))
    assert_user_error(done, ", ".join(RUN_OPTIONS))


def test_an_option_with_its_default_value_is_accepted(texts: Path, tmt: Tmt) -> None:
    assert tmt("evaluate", *HYP, "--checkpoint", "best").returncode == 0


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (("RUN", "--src", "test.en"), ("--src and --ref go together",)),
        (("RUN", "--src", "test.en", "--ref", "valid.de"), ("test.en has 6 lines, valid.de has 8",)),
        (("RUN", "--set", "seen"), ("evaluate: --set seen: the test sets of this run are unseen",)),
        (("RUN", *FILES, "--output", "valid.de"), ("valid.de: is an input, and --output valid.de would overwrite it",)),
        (("empty", "--ref", "empty"), ("empty: holds no lines",)),
        (("latin", "--ref", "test.de"), ("latin:1: not UTF-8 text",)),
        ((*HYP, "--text", "moses", "--tgt-lang", "xx"), ('text moses: Moses has no rules for "xx", only for as,',)),
    ],
)
def test_wrong_arguments_are_refused(
    command: tuple[str, ...], parts: tuple[str, ...], texts: Path, tiny_run: Path, tmt: Tmt
) -> None:
    before = sorted(texts.iterdir())
    assert_user_error(tmt("evaluate", *(str(tiny_run) if word == "RUN" else word for word in command)), *parts)
    assert [path for path in sorted(texts.iterdir()) if path.name != "runs"] == before


def test_output_needs_a_single_test_set(run_copy: Path, texts: Path, tmt: Tmt) -> None:
    config = (run_copy / "config.yaml").read_text(encoding="utf-8")
    more = "\n    more: {src: valid.en, tgt: valid.de}\n    unseen:"
    (run_copy / "config.yaml").write_text(config.replace("\n    unseen:", more), encoding="utf-8")
    message = "--output needs a single test set; choose one with --set (there are more, unseen)"
    assert_user_error(tmt("evaluate", run_copy, "--output", "out"), message)
    assert list(in_json(tmt, run_copy)["test_sets"]) == ["more", "unseen"]
    assert not Path("out").exists()
    assert_user_error(
        tmt("evaluate", run_copy, "--set", "unseen", "--output", "test.de"),
        "test.de: is an input, and --output",
    )
    found = in_json(tmt, run_copy, "--output", "out", "--set", "more")["test_sets"]
    assert (list(found), found["more"]["pairs"], len(lines_of("out"))) == (["more"], 8, 8)


def test_an_unwritable_output_is_refused_before_translation(
    tiny_run: Path, texts: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Translator, "translate", lambda *_, **__: pytest.fail("has translated"))
    Path("out.part").mkdir()
    assert_user_error(tmt("evaluate", tiny_run, *FILES, "--output", "out"), "out.part: Is a directory")


def test_an_interruption_during_translation_leaves_no_files(
    tiny_run: Path, texts: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def translate(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(Translator, "translate", translate)
    before = sorted(texts.iterdir())
    done = tmt("evaluate", tiny_run, *FILES, "--output", "out")
    assert (done.returncode, done.stderr) == (130, "")
    assert sorted(texts.iterdir()) == before


@pytest.mark.slow
def test_the_reported_step_is_the_one_that_was_loaded(
    texts: Path, tiny_run: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running training may delete the checkpoint that was found first."""
    load = loading.load_weights_of
    monkeypatch.setattr(loading, "load_weights_of", lambda model, run, _: load(model, run, "8"))
    assert in_json(tmt, tiny_run, *FILES)["step"] == 8
    done = tmt("evaluate", tiny_run, "valid.de", "--src", "valid.en", "--ref", "valid.de", "--json", "--show", 0)
    assert json.loads(done.stdout)["systems"]["A"] == f"{tiny_run} (beam 5, step 8, torch)"


def test_a_table_is_not_scored_line_by_line(texts: Path, tiny_run: Path, tmt: Tmt) -> None:
    Path("t.csv").write_text("en;de\none;eins\n", encoding="utf-8")
    assert_user_error(tmt("evaluate", tiny_run, "--src", "t.csv", "--ref", "t.csv"), "t.csv")
    assert_user_error(tmt("evaluate", "t.csv", "--ref", "t.csv"), "t.csv")


def test_suspicious_files_give_a_warning(texts: Path, tiny_run: Path, tmt: Tmt) -> None:
    english, german = "The dog is asleep in the house.\n" * 5, "Der Hund schläft heute in dem Haus.\n" * 5
    japanese = "犬は家の中で寝ています。\n" * 5
    for name, text in {"e": english, "g": german, "j": japanese}.items():
        Path(name).write_text(text, encoding="utf-8")
    Path("tokens").write_text("Der Hund schläft , sagt er .\n" * 3 + "Er schläft\n" * 2, encoding="utf-8")
    Path("gaps").write_text("Der Hund schläft.\n \n\nEr schläft.\n\n", encoding="utf-8")
    pieces = {"bpe": "Der Hu@@ nd schläft .", "unigram": "▁Der ▁Hund ▁schläft .", "wordpiece": "Der Hu ##nd schläft ."}
    for name, line in {**pieces, "nfd": "Der Hund schla\u0308ft.", "invisible": "Der Hu\u00adnd schläft."}.items():
        Path(name).write_text("Der Hund.\n" * 3 + f"{line}\n" * 2, encoding="utf-8")
    Path("nothing").write_text("\n \n\n\n\n", encoding="utf-8")
    warnings = {
        ("nothing", "--ref", "g"): "nothing: all lines are empty",
        ("g", "nothing", "--ref", "g"): "nothing: all lines are empty",
        ("g", "--ref", "g"): "g: all lines equal those of g",
        ("tokens", "--ref", "g"): "tokens: has spaces before punctuation",
        ("g", "--ref", "tokens"): "tokens: has spaces before punctuation",
        (tiny_run, "--src", "e", "--ref", "tokens"): "tokens: has spaces before punctuation",
        ("g", "tokens", "--ref", "g"): "tokens: has spaces before punctuation",
        **{(name, "--ref", "g"): f"{name}:4: has subword pieces" for name in pieces},
        ("nfd", "--ref", "g"): "nfd:4: 2 lines have invisible characters or separate accents",
        ("g", "invisible", "--ref", "g"): "invisible:4: 2 lines have invisible characters or separate accents",
        ("g", "--ref", "nfd"): "nfd:4: 2 lines have invisible characters or separate accents",
        ("g", "--ref", "gaps"): "gaps:2: 3 lines are empty",
        (tiny_run, "--src", "e", "--ref", "gaps"): "gaps:2: 3 lines are empty",
        ("e", "--ref", "j"): "--tgt-lang ja",
        (tiny_run, "--src", "g", "--ref", "e"): "swapped",
        (tiny_run, "--src", "j", "--ref", "g"): "warning: j seems to be in ",
    }
    for arguments, warning in warnings.items():
        assert warning in tmt("evaluate", *arguments).stderr
    assert "warning" not in tmt("evaluate", tiny_run, "--src", "e", "--ref", "g").stderr
    assert "NFD" not in tmt("evaluate", "nfd", "--ref", "nfd").stderr
    moses = tmt("evaluate", "tokens", "--ref", "tokens", "--text", "moses", "--tgt-lang", "de").stderr
    assert "has spaces before punctuation" not in moses


def test_a_comparison_without_p_values_says_why(texts: Path, tmt: Tmt) -> None:
    Path("a").write_text("Der Hund schläft.\n" * 9, encoding="utf-8")
    Path("b").write_text("Der Hund schläft.\n" * 6 + "Er schläft.\n" * 3, encoding="utf-8")
    table = assert_succeeded(tmt("evaluate", "a", "b", "--ref", "a"))
    assert "no p of BLEU, chrF, chrF++, TER: fewer than 6 lines" in table
    assert "no p of" not in assert_succeeded(tmt("evaluate", "a", "a", "--ref", "a"))
