"""Loading of models: language pairs, and new checkpoints while serving."""

from __future__ import annotations

import shutil
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from helpers import Tmt, assert_succeeded, load_plain, make_model_options
from starlette.testclient import TestClient

from transformer_mt.data.data_config import Direction
from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.serving.models import ServedModel, load_models
from transformer_mt.tools.serving.service import find_direction, is_same_language

OPTIONS = make_model_options()
ONE = {"q": "one two", "source": "en", "target": "de"}


def test_a_new_best_checkpoint_is_loaded_without_a_restart(run_copy: Path, make_client: Any) -> None:
    model = ServedModel(run_copy, OPTIONS)
    client: TestClient = make_client(models=[model])
    before = model.loaded.version
    assert not model.reload(), "nothing has changed"
    shutil.rmtree(RunFolder(run_copy).find_checkpoint("best").path)
    assert model.reload()
    assert model.loaded.version != before
    expected = load_plain(run_copy, device="cpu", threads=1).translate(["one two"])
    assert client.post("/translate", json=ONE).json()["translatedText"] == expected[0]


def test_a_damaged_checkpoint_leaves_the_old_one_in_place_and_is_logged_once(
    run_copy: Path, make_client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ServedModel(run_copy, OPTIONS)
    client: TestClient = make_client(models=[model])
    expected = client.post("/translate", json=ONE).json()
    file = RunFolder(run_copy).find_checkpoint("best").path / "checkpoint.json"
    content = file.read_text(encoding="utf-8")
    for damaged, n_logged in (("{", 1), ("{", 0), (content, 0), ("{", 1)):
        file.write_text(damaged, encoding="utf-8")
        assert not model.reload()
        assert capsys.readouterr().err.count("not reloaded") == n_logged
    assert client.post("/translate", json=ONE).json() == expected


def test_a_model_with_tags_is_served_like_tmt_translate_with_each_tag(
    tagged_run: Path, tmt: Tmt, make_client: Any
) -> None:
    options = make_model_options("always")
    client: TestClient = make_client(models=load_models([tagged_run], options))
    assert [(each["code"], each["targets"]) for each in client.get("/languages").json()] == [
        ("en", ["de"]),
        ("de", ["en"]),
    ]
    line = "acht am 3. Oktober. Eins zwei."
    for source, target, tag in (("en", "de", "2de"), ("de", "en", "2en")):
        request = {"q": line, "source": source, "target": target}
        answer = client.post("/translate", json=request).json()
        command = ("translate", tagged_run, "--tag", tag, "--split-sentences", "always", "--threads", 1, line)
        assert answer["translatedText"] == assert_succeeded(tmt(*command)).removesuffix("\n")
    assert client.post("/translate", json={**ONE, "tag": "2en"}).status_code == 400


@pytest.mark.parametrize(
    ("kind", "options"),
    [("nllb", ()), ("m2m", ()), ("m2m", ("--languages", "fr,de")), ("nllb", ("--src-lang", "fra_Latn"))],
)
def test_an_imported_model_is_served_between_any_two_of_its_languages(
    kind: str, options: tuple[str, ...], tmp_path: Path, tmt: Tmt, make_client: Any
) -> None:
    from importing_helpers import M2M_LANGUAGES, make_m2m100

    make_m2m100(tmp_path / "source", kind)
    assert_succeeded(tmt("import", tmp_path / "source", "--output", tmp_path / "run", *options))
    models = load_models([tmp_path / "run"], make_model_options())
    codes = options[1].split(",") if "--languages" in options else M2M_LANGUAGES[kind]
    assert sorted(models[0].directions) == sorted(Direction(a, b, f"{a}:{b}") for a, b in permutations(codes, 2))
    client: TestClient = make_client(models=models)
    for source, target in permutations(codes, 2):
        request = {"q": "two old dogs", "source": source, "target": target}
        answer = client.post("/translate", json=request).json()["translatedText"]
        command = ("translate", tmp_path / "run", "--tag", f"{source}:{target}", "two old dogs", "--threads", 1)
        assert answer == assert_succeeded(tmt(*command)).removesuffix("\n")


def test_a_run_is_served_with_ctranslate2_and_uses_torch_for_html(
    run_copy: Path, tmt: Tmt, make_client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    auto, alone = (
        make_client(models=load_models([run_copy], make_model_options(engine=engine)))
        for engine in ("auto", "ctranslate2")
    )
    assert capsys.readouterr().err.count("engine ctranslate2") == 2
    expected = assert_succeeded(tmt("translate", run_copy, "one two", "--engine", "ctranslate2")).strip("\n")
    for client, has_alignments in ((auto, True), (alone, False)):
        assert client.post("/translate", json=ONE).json()["translatedText"] == expected
        request = {**ONE, "q": "<b>one</b> two", "format": "html"}
        assert client.post("/translate", json=request).status_code == (200 if has_alignments else 400)


def test_codes_of_one_language_are_recognised() -> None:
    for code, other in (("en", "eng_Latn"), ("eng", "en-GB"), ("de-AT", "deu"), ("zh_Hans", "cmn-hans")):
        assert is_same_language(code, other) and is_same_language(other, code)
    assert not is_same_language("zh-Hans", "zh-Hant") and not is_same_language("en", "de")


@pytest.mark.parametrize(
    ("source", "target", "tag", "expected"),
    [
        ("en", "de", None, Direction("en", "de", "2de")),
        ("eng", "DEU", None, Direction("en", "de", "2de")),
        ("en", "de", "formal", Direction("en", "de", "formal")),
        ("en", "zh-Hant", None, Direction("en", "zh-Hant", "2zht")),
        ("en", "zh", None, Direction("en", "zh-Hans", "2zhs")),
        ("en", "fr", None, None),
        ("en", "de", "2fr", None),
    ],
)
def test_a_direction_is_found_by_its_languages_and_tag(
    source: str, target: str, tag: str | None, expected: Direction | None
) -> None:
    pairs = [("de", "2de"), ("de", "formal"), ("zh-Hans", "2zhs"), ("zh-Hant", "2zht")]
    known = [Direction("en", language, tag) for language, tag in pairs]
    assert find_direction(known, source, target, tag) == expected
