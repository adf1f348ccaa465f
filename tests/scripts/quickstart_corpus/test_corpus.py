"""The generated quickstart corpus: fixed content, one translation per sentence, and no leakage between splits."""

from __future__ import annotations

import gzip
import re
from collections import Counter

import pytest
from quickstart_corpus import lexicon, verbs
from quickstart_corpus.corpus import MIN_COUNT, generate_splits, is_reserved, word_forms
from quickstart_corpus.dice import Dice
from quickstart_corpus.grammar import sentence
from write_quickstart_corpus import to_tsv

from transformer_mt.data.sources import QUICKSTART_FILE, SPLITS, load_pairs

CORPUS = {split: load_pairs(split) for split in SPLITS}
ALL_PAIRS = [pair for pairs in CORPUS.values() for pair in pairs]
ADJECTIVES = {adjective.en for adjective in lexicon.ADJECTIVES}
VERBS = [verb for verb in vars(verbs).values() if isinstance(verb, verbs.Verb)]
NOUN_FORMS = {form: noun.en for noun in lexicon.NOUNS.values() for form in (noun.en, noun.en_plural) if form}
VERB_FORMS = {
    form: verb.en
    for verb in VERBS
    if verb != verbs.BE and not verb.preposition and not verb.particle
    for form in (verb.en, verb.en_third, verb.en_past, verb.en_ing)
}
DETERMINERS = re.findall(r"\w+", "the a an this these my his her our their two three four five six seven eight nine")


def test_shipped_file_is_what_the_generator_writes():
    splits = generate_splits()
    assert to_tsv(splits).encode() == gzip.decompress(QUICKSTART_FILE.read_bytes())
    for text in splits["combinations"]:
        assert any(is_reserved(phrase) for phrase in text.pairs), text.en


@pytest.mark.parametrize("side", [0, 1], ids=["en", "de"])
def test_no_sentence_is_repeated_in_any_split(side: int):
    sentences = [pair[side] for pair in ALL_PAIRS]
    assert len(set(sentences)) == len(sentences)


def test_an_english_sentence_has_one_german_translation():
    dice = Dice(seed=1)
    german: dict[str, str] = {}
    for _ in range(6_000):
        text = sentence(dice)
        assert german.setdefault(text.en, text.de) == text.de, text.en


def test_sentences_are_well_formed():
    for en, de in ALL_PAIRS:
        assert 3 <= len(en.split()) <= 25
        assert en[-1] == de[-1]
        for text in (en, de):
            assert re.fullmatch(r"[A-ZÄÖÜ][\w', ]*[.?]", text), text
            assert "  " not in text and " ," not in text and ",," not in text


def test_german_contracts_prepositions_and_sets_commas():
    for _, de in ALL_PAIRS:
        assert not re.search(r"\b(in|an|von|bei|zu) dem\b|\bzu der\b|\b(in|an) das\b", de), de  # im, am, zur ...
        assert not re.search(r"[^,] (dass|weil|obwohl|wenn|ob|sondern|aber)\b", de), de
        assert not re.search(r"[^,] um \w.* zu \w+en\b", de) or " um " not in de.split(", um ")[0], de


def test_held_out_words_are_frequent_in_train():
    for side in (0, 1):
        counts = Counter(form for pair in CORPUS["train"] for form in word_forms(pair[side]))
        for split in ("validation", "test", "combinations"):
            for pair in CORPUS[split]:
                assert all(counts[form] >= MIN_COUNT for form in word_forms(pair[side])), pair


def visible_phrases(en: str) -> set[tuple[str, str]]:
    """Return the (adjective, noun) and (verb, object) pairs that are neighbours in a sentence."""
    words = word_forms(en.lower())
    found: set[tuple[str, str]] = set()
    for place, word in enumerate(words):
        before = words[max(0, place - 2) : place]
        if word in NOUN_FORMS and before and before[-1] in ADJECTIVES:
            found.add((before[-1], NOUN_FORMS[word]))
        elif word in NOUN_FORMS and len(before) == 2 and before[0] in VERB_FORMS and before[1] in DETERMINERS:
            found.add((VERB_FORMS[before[0]], NOUN_FORMS[word]))
    return found


def test_reserved_word_pairs_occur_only_in_combinations():
    for split in ("train", "validation", "test"):
        for en, _ in CORPUS[split]:
            assert not any(is_reserved(phrase) for phrase in visible_phrases(en)), en
