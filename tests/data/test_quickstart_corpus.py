"""The quickstart corpus: the same everywhere, one translation for a sentence, and splits that do not leak."""

import re
import zlib
from collections import Counter

import pytest

from transformer_mt.data.quickstart import corpus as quickstart
from transformer_mt.data.quickstart import lexicon, verbs
from transformer_mt.data.quickstart.corpus import SPLITS, is_reserved, pairs, word_forms
from transformer_mt.data.quickstart.dice import Dice
from transformer_mt.data.quickstart.grammar import sentence

CHECKSUM = 2594111934
SIZES = {
    "train": quickstart.TRAIN_SIZE,
    "validation": quickstart.VALIDATION_SIZE,
    "test": quickstart.TEST_SIZE,
    "combinations": quickstart.COMBINATIONS_SIZE,
}
CORPUS = [pair for split in SPLITS for pair in pairs(split)]
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


def test_the_corpus_is_the_same_on_every_machine():
    text = "\n".join(f"{en}\t{de}" for en, de in CORPUS)
    assert zlib.crc32(text.encode()) == CHECKSUM


def test_sizes_and_a_fresh_list_for_every_caller():
    assert {split: len(pairs(split)) for split in SPLITS} == SIZES
    pairs("test").clear()
    assert len(pairs("test")) == SIZES["test"]


def test_unknown_split():
    with pytest.raises(KeyError):
        pairs("dev")


@pytest.mark.parametrize("side", [0, 1], ids=["en", "de"])
def test_no_sentence_comes_twice_in_any_split(side: int):
    sentences = [pair[side] for pair in CORPUS]
    assert len(set(sentences)) == len(sentences)


def test_an_english_sentence_has_one_german_translation():
    """Also beyond the corpus: whatever the grammar says twice, it translates alike."""
    dice = Dice(seed=1)
    german: dict[str, str] = {}
    for _ in range(12_000):
        text = sentence(dice)
        assert german.setdefault(text.en, text.de) == text.de, text.en


def test_written_as_sentences():
    for en, de in CORPUS:
        assert 3 <= len(en.split()) <= 25
        assert en[-1] == de[-1]
        for text in (en, de):
            assert re.fullmatch(r"[A-ZÄÖÜ][\w', ]*[.?]", text), text
            assert "  " not in text and " ," not in text and ",," not in text


def test_german_orthography():
    for _, de in CORPUS:
        assert not re.search(r"\b(in|an|von|bei|zu) dem\b|\bzu der\b|\b(in|an) das\b", de), de  # im, am, zur ...
        assert not re.search(r"[^,] (dass|weil|obwohl|wenn|ob|sondern|aber)\b", de), de
        assert not re.search(r"[^,] um \w.* zu \w+en\b", de) or " um " not in de.split(", um ")[0], de


def test_held_out_words_are_known_from_train():
    for side in (0, 1):
        counts = Counter(form for pair in pairs("train") for form in word_forms(pair[side]))
        for split in ("validation", "test", "combinations"):
            for pair in pairs(split):
                assert all(counts[form] >= quickstart.MIN_COUNT for form in word_forms(pair[side])), pair


def test_every_word_is_frequent_in_train():
    counts = Counter(form.lower().removesuffix("'s") for en, _ in pairs("train") for form in word_forms(en))
    for noun in lexicon.NOUNS.values():
        assert counts[noun.en] + counts[noun.en_plural] >= 30, noun.en
    for adjective in lexicon.ADJECTIVES:
        assert counts[adjective.en] >= 30, adjective.en
    for verb in VERBS:
        assert sum(counts[form.lower()] for form in {verb.en, verb.en_third, verb.en_past, verb.en_ing}) >= 30, verb.en


def _phrases(en: str) -> set[tuple[str, str]]:
    """Adjective and noun, verb and object, as they stand next to each other in the text."""
    words = word_forms(en.lower())
    found: set[tuple[str, str]] = set()
    for place, word in enumerate(words):
        before = words[max(0, place - 2) : place]
        if word in NOUN_FORMS and before and before[-1] in ADJECTIVES:
            found.add((before[-1], NOUN_FORMS[word]))
        elif word in NOUN_FORMS and len(before) == 2 and before[0] in VERB_FORMS and before[1] in DETERMINERS:
            found.add((VERB_FORMS[before[0]], NOUN_FORMS[word]))
    return found


def test_reserved_word_pairs_never_meet_outside_combinations():
    for split in ("train", "validation", "test"):
        for en, _ in pairs(split):
            assert not any(is_reserved(phrase) for phrase in _phrases(en)), en


def test_combinations_hold_reserved_word_pairs():
    for text in quickstart._splits()["combinations"]:
        assert any(is_reserved(phrase) for phrase in text.pairs), text.en
    visible = [any(is_reserved(phrase) for phrase in _phrases(en)) for en, _ in pairs("combinations")]
    assert sum(visible) > len(visible) * 0.4


@pytest.mark.parametrize(
    ("phenomenon", "pattern"),
    [
        ("verb second after time", r"^(Heute|Gestern|Morgen|Jetzt) (hat|ist|\w+t|\w+en) "),
        ("perfect with haben", r" (habe|hat|haben) .*\w(t|en)\.$"),
        ("perfect with sein", r" (bin|ist|sind) .*(gegangen|gelaufen|gefahren|gekommen|geblieben|aufgestanden)\.$"),
        ("subordinate clause", r", (weil|obwohl|dass|wenn|ob) .* \w+(t|en|e|st|iß)[.,]"),
        ("separable verb", r"^[^,]* (holt|ruft|steht|schaltet|sieht|kommt) .*\b(ab|an|auf|aus|fern|zurück)\."),
        ("relative clause", r", (der|die|das|den|dem|denen) [^,]*, "),
        ("kein", r"\bkein(e|en)? "),
        ("nicht", r"\bnicht\b"),
        ("modal verb", r"\b(kann|muss|will|darf|sollte|können|müssen|wollen|dürfen|sollten)\b"),
        ("future", r"\b(werde|wird|werden) .*en\b"),
        ("gern", r"\bgern\b"),
        ("genitive", r"\b(des|meines|seines|ihres|unseres) \w+(s|n)\b"),
        ("dative plural", r"\b(den|vielen|meinen|ihren|drei) \w+n\b"),
        ("purpose", r", um .*\bzu \w+en\."),
        ("clock", r"\bum \w+ Uhr\b"),
        ("comparison", r"er als (der|die|das)\b"),
        ("question word", r"^(Wer|Wen|Wem|Was|Wo|Wohin|Wann|Warum|Wie viele|Welche[rsn]?) "),
        ("correction", r" nicht \w+, sondern "),
        ("there is", r"\b(gibt|gab) es\b|\bEs (gibt|gab)\b"),
    ],
)
def test_every_phenomenon_is_frequent(phenomenon: str, pattern: str):
    found = sum(bool(re.search(pattern, de)) for _, de in pairs("train"))
    assert found >= 60, (phenomenon, found)
