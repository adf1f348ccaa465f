"""Translation with a glossary: its terms are used, and nothing else changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from document_helpers import has_elements_of

from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import TokenizerConfig
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.decoding.engine import TorchEngine
from transformer_mt.decoding.translator import Translator, TruncatedSourceWarning
from transformer_mt.errors import UserError
from transformer_mt.tools.markup.glossary import Glossary
from transformer_mt.tools.markup.protection import Protector
from transformer_mt.tools.markup.stages import GlossaryStage, UnusableTermWarning

TEXTS = [src for src, _ in load_pairs("test")[:16]]
TERMS = {"the": ("Xaver", "ein Xaver"), "old": ("uralt",), "dog": ("Köter", "Hund"), "a": ("irgendein",)}
SEARCHES: list[dict[str, Any]] = [{"beam": 1}, {"beam": 4, "n_best": 3}]


def write(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "terms.tsv"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def glossary(tmp_path: Path) -> str:
    return write(tmp_path, *(f"{term}\t{'|'.join(forms)}" for term, forms in TERMS.items()))


def occurrences(forms: tuple[str, ...], text: str) -> int:
    alternatives = "|".join(sorted(forms, key=len, reverse=True))
    return len(re.findall(rf"(?<!\w)(?:{alternatives})(?!\w)", text, re.IGNORECASE))


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "n-best"])
def test_each_translation_has_each_term(
    make_translator: Callable[..., Translator], glossary: str, search: dict[str, Any]
) -> None:
    translator = make_translator()
    for text, n_best in zip(TEXTS, translator.n_best(TEXTS, glossary=glossary, **search), strict=True):
        for translation in n_best:
            for term, forms in TERMS.items():
                needed = len(re.findall(rf"\b{term}\b", text, re.IGNORECASE))
                assert occurrences(forms, translation.text) >= needed, (text, translation.text)


def test_terms_and_elements_are_guaranteed_together(make_translator: Callable[..., Translator], glossary: str) -> None:
    translator = make_translator()
    texts = [f"<b>{text}</b> {{name}}" for text in TEXTS]
    translations = translator.n_best(texts, glossary=glossary, markup="auto", beam=2)
    for text, (best, *_) in zip(texts, translations, strict=True):
        marked = best.content
        assert has_elements_of(marked, Protector().mark(text))
        plain = re.sub(r"</?b>", "", best.text)
        for term, forms in TERMS.items():
            assert occurrences(forms, plain) >= len(re.findall(rf"\b{term}\b", text, re.IGNORECASE))


def test_translations_of_lines_without_terms_do_not_change(
    make_translator: Callable[..., Translator], tmp_path: Path
) -> None:
    translator = make_translator(beam=3)
    plain = translator.translate(TEXTS)
    found = translator.translate(TEXTS, glossary=write(tmp_path, "he\tXaver"))
    without = [i for i, text in enumerate(TEXTS) if not re.search(r"\bhe\b", text, re.IGNORECASE)]
    assert 0 < len(without) < len(TEXTS)
    assert [found[i] for i in without] == [plain[i] for i in without]


def test_a_translation_that_has_its_terms_does_not_change(
    make_translator: Callable[..., Translator], tmp_path: Path
) -> None:
    translator = make_translator(beam=3)
    plain = translator.translate(TEXTS[:6])
    for text, translation in zip(TEXTS, plain, strict=False):
        word = translation.split()[0]
        glossary = write(tmp_path, f"{text.split()[0]}\t{word}|Köter")
        assert translator.translate([text], glossary=glossary) == [translation]


def test_a_kept_term_is_not_translated(make_translator: Callable[..., Translator], tmp_path: Path) -> None:
    translator = make_translator(glossary=write(tmp_path, "old dog\t\tkeep"))
    assert "Old Dog" in translator.translate(["The Old Dog sleeps."])[0]


def test_terms_without_room_are_left_out_with_a_warning(
    make_translator: Callable[..., Translator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = make_translator(glossary=write(tmp_path, "dog\tein Köter unter Kötern"))
    monkeypatch.setattr(TorchEngine, "max_positions", 12)
    with pytest.warns(UnusableTermWarning, match="line 1: its terms have"):
        translator.translate(["dog dog dog dog"])


@pytest.mark.parametrize("variant", ["xaver", "hund", "der Köter"])
def test_terms_that_cannot_be_written_in_a_sentence_are_left_out_with_a_warning(tmp_path: Path, variant: str) -> None:
    words = build_tokenizers(TokenizerConfig(kind="word", min_frequency=1), [("dog", "Hund Der Köter")])
    stage = GlossaryStage(Glossary.read(Path(write(tmp_path, f"dog\t{variant}", "cat\tKöter"))), words.tgt)
    with pytest.warns(UnusableTermWarning, match="line 1"):
        assert stage.make_automaton("dog", 100, 1) is None
    assert stage.make_automaton("cat", 100, 1) is not None


def test_random_samples_with_required_terms_are_refused(
    make_translator: Callable[..., Translator], glossary: str
) -> None:
    with pytest.raises(UserError, match=r"decoding\.glossary"):
        make_translator().translate(TEXTS, glossary=glossary, sample=True)


def test_each_line_that_is_cut_has_one_warning(make_translator: Callable[..., Translator], tmp_path: Path) -> None:
    translator = make_translator(glossary=write(tmp_path, "dog\tHund"), max_source_length=8, markup="auto")
    with pytest.warns(TruncatedSourceWarning) as warned:
        translator.n_best(["a dog", "a <b>dog</b>" + " dog" * 40, "dog" + " dog" * 30])
    assert [str(each.message).partition(" has ")[0] for each in warned] == ["line 2", "line 3"]
