"""The guard against visible faults, with an engine that says what a table says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from transformer_mt.data.data_config import DataConfig
from transformer_mt.data.tokenizers.tokenizer import TokenizerConfig, TokenizerPair
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.hooks import Fault, Piece, TranslatorHooks
from transformer_mt.decoding.interface import Hypothesis, ModelProvenance
from transformer_mt.decoding.translator import Translator
from transformer_mt.runs.records import Percentiles, TrainingLengths
from transformer_mt.tools.robustness.guard import LOOP, FaultReport, Guard

SIZES = Percentiles(p95=9, p999=9)
PROVENANCE = ModelProvenance({}, "en", "de", 99, TrainingLengths(tokens=SIZES, sentences=SIZES, ratio=1.1, spread=1.2))
LONG = "one two three four five six seven eight"


class TableEngine:
    """Returns the n-best lists of a table, and lists the texts of each search. A token is a character."""

    name, precision, has_alignments, max_positions = "table", "fp32", False, 10_000

    def __init__(self, table: Mapping[str, Sequence[str]], tokenizers: TokenizerPair) -> None:
        self.table, self.tokenizers = table, tokenizers
        self.searches: list[tuple[int, list[str]]] = []  # n_best and texts

    def search(self, sources: list[list[int]], config: DecodingConfig, *_: Any, **__: Any) -> list[list[Hypothesis]]:
        texts = self.tokenizers.src.decode(sources)
        self.searches.append((config.n_best, texts))
        found = (self.table.get(text, [text.upper()])[: config.n_best] for text in texts)
        return [[Hypothesis(ids, [], True) for ids in self.tokenizers.tgt.encode(n_best)] for n_best in found]


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    """Tokenizers without a loss: bytes."""
    pairs = [(LONG, LONG)]
    return build_tokenizers(TokenizerConfig(vocab_size=300), pairs)


Run = Callable[..., tuple[list[str], FaultReport, Any]]


@pytest.fixture
def run(tokenizers: TokenizerPair) -> Run:
    """Translate lines with the guard. Return the translations, the report, and the faults and searches."""

    def run(
        table: Mapping[str, Sequence[str]], lines: Sequence[str], **options: Any
    ) -> tuple[list[str], FaultReport, Any]:
        found: list[tuple[int, list[str], list[str]]] = []
        report = FaultReport(
            lambda number, before, after: found.append((number, [*map(str, before)], [*map(str, after)]))
        )
        engine: Any = TableEngine(table, tokenizers)
        hooks = TranslatorHooks(make_policy=lambda _, config: Guard.make(PROVENANCE, config), on_fault=report.add)
        config = DecodingConfig(restore_case=False, batch_tokens=100_000)
        translator = Translator(engine, tokenizers, config, hooks=hooks)
        n_best_lists = translator.n_best(lines, **options)
        return [best.text for best, *_ in n_best_lists], report, (found, engine.searches)

    return run


def make_guard(provenance: ModelProvenance) -> Guard:
    guard = Guard.make(provenance, DecodingConfig())
    assert guard is not None
    return guard


@pytest.mark.parametrize(
    ("source", "text", "kinds"),
    [
        ("A dog sleeps.", "Ein Hund schläft.", ""),
        ("A dog sleeps.", " . ", "empty"),
        ("A dog sleeps.", "Ein Hund, ein Hund, ein Hund, ein Hund, ein Hund", "loop long"),
        ("very very very very very good", "sehr sehr sehr sehr sehr gut", ""),
        ("狗在房子前面睡觉", "狗狗狗狗狗狗狗狗狗狗狗狗狗狗狗狗", "loop"),
        ("the dog is asleep now", "the dog is asleep now", "copy"),
        ("THE DOG IS ASLEEP", "THE DOG IS ASLEEP", "copy"),
        ("Apple iPhone 15 Pro Max", "Apple iPhone 15 Pro Max", ""),
        ("def f(x): return x", "def f(x): return x", ""),
        ("in it 2,200.5 km", "darin 2.200,5 km", ""),
        ("on 12/31/2024", "am 31.12.2024", ""),
        ("The number 2.200.112 is", "Die Zahl 2,200,12 ist", "number"),
        ("see 12 dogs", "siehe 1 … 2 Hunde", "number"),
        ("see 10000 dogs", "siehe 10 000 Hunde", ""),
        ("with 3 dogs", "mit drei Hunden", ""),
        ("with 3 dogs", "mit 4 Hunden", "number"),
        ("with ٣٤ dogs", "mit 34 Hunden", ""),
        ("see https://a.org/b.", "siehe https://a.org/b.", ""),
        ("see https://a.org/b.", "siehe https://a.org.", "link"),
        ("狗在https://a.org/b上看。", "see a dog at https://a.org/b.", ""),
        ("to me@a.org, please", "bitte an mich @ a.org", "link"),
        ("fine 👍🏽 © 2 you", "gut 👍 dir", ""),
        ("fine 🇩🇪 now", "gut jetzt", "emoji emoji"),
        ("1. Wash the dog.", "Den Hund waschen.", "list marker"),
        ("1. Wash the dog.", "1) Den Hund waschen.", ""),
        ("2) Feed it.", "Füttern.", "list marker"),
        ("• a dog", "ein Hund", "list marker"),
        ("> a dog", "> ein Hund", ""),
        ("* a dog", "• ein Hund", ""),
        ("१. a dog", "1. ein Hund", ""),
        ("1. a dog", "١. ein Hund", ""),
        ("१) a dog", "ein Hund", "list marker"),
        ("- a dog", "– ein Hund", ""),
        (f"{LONG} {LONG} {LONG}", "eins zwei drei vier", "short"),
        ("Собака 狗 спит", "", "unknown script"),
        ("Собака 狗 спит", "Собака 狗 спит", ""),
        ("ｔｈｅ ｄｏｇ ｓｌｅｅｐｓ", "der Hund schläft", ""),
        ("the Собака dog", "der Собака Hund", ""),
        ("Yes.", "Ja, das ist so, und so war es immer.", "long"),
    ],
)
def test_faults_are_those_that_a_reader_sees_without_knowing_the_languages(source: str, text: str, kinds: str) -> None:
    language = "zh" if source.startswith("狗") else "en"
    guard = make_guard(replace(PROVENANCE, src_lang=language))
    assert " ".join(fault.kind for fault in guard.find_faults(source, text)) == kinds


LOOPS = [
    "sererererererer",
    "Der Hund schläft im Gartenenenenenenen.",
    "Ein Mannnnnnnnnnnnnnnn schläft.",
    "lalalalalalalala",
    "Er dasdasdasdasdasdas",
    "SeReReReReReReR",
    "un-un-un-un-un-un-un",
    "«tatatatatatatatatata»",
    "Verkehrs-kehrs-kehrs-kehrs-kehrs-kehrs",
    "собабабабабабабабака спит",
    "คนคนคนคนคนคนคน",
    "นี่นี่นี่นี่นี่นี่นี่",
    "d'd'd'd'd'd'd'd",
    "a1a1a1a1a1a1a1a1",
]


@pytest.mark.parametrize("text", LOOPS)
def test_a_run_of_letters_is_a_loop(text: str) -> None:
    kinds = [fault.kind for fault in make_guard(PROVENANCE).find_faults("An old dog sleeps in the garden.", text)]
    assert kinds.count("loop") == 1


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("Haha!", "Hahaha!"),
        ("Hahahahaha, well done", "Hahahahahahaha, gut gemacht"),
        ("Blah blah blah blah blah", "Blablablablabla"),
        ("No!!!!!!!!!!!!!", "Nein!!!!!!!!!!!!!!!!!!!"),
        ("Wait.....................", "Warte....................."),
        ("A -------------------- B", "A -------------------- B"),
        ("Aaaah, a dog", "Aaaaaaah, ein Hund"),
        ("1000000000000000 dogs", "1000000000000000 Hunde"),
        ("0101010101010101", "0101010101010101"),
        ("The DNA ATATATATATATATATAT is old", "Die DNA ATATATATATATATATAT ist alt"),
        ("gene GAAGAAGAAGAAGAAGAA.", "Gen GAAGAAGAAGAAGAAGAA."),
        ("fill in XXXXXXXXXXXXXXXX", "füllen Sie XXXXXXXXXXXXXXXX aus"),
        ("a banana in Mississippi", "eine Banane in Mississippi, Honolulu, Couscous"),
        ("Dogs sleep more often than people think.", "สุนัขนอนหลับบ่อยกว่าที่คนคิดมากๆ"),
        ("Laughing dogs sleep here for ever", "哈哈哈哈，狗永远睡在这里，他们笑着睡觉。"),
        ("He laughs out loud", "ㅋㅋㅋㅋㅋㅋㅋ"),
    ],
)
def test_a_run_that_a_writer_may_mean_is_no_loop(source: str, text: str) -> None:
    assert "loop" not in [fault.kind for fault in make_guard(PROVENANCE).find_faults(source, text)]


def test_no_translation_is_replaced_by_a_loop(run: Run) -> None:
    """The hypotheses of its parts are loops, too."""
    words = LONG.split()
    spans = [" ".join(words[i:j]) for i, j in combinations(range(len(words) + 1), 2)]
    texts, report, (_, searches) = run({span: ["sererererererer", "lalalalalalalala"] for span in spans}, [LONG])
    assert (texts, report.remaining) == (["sererererererer"], {"loop": 1})
    assert len(searches) > 2, "parts were searched"


def test_a_translation_with_a_loop_never_replaces_another() -> None:
    guard = make_guard(PROVENANCE)
    numbers = [Fault("number", "34"), Fault("number", "56")]
    assert guard.may_replace(numbers[:1], numbers) and guard.may_replace([], [LOOP])
    assert not guard.may_replace([LOOP], numbers) and not guard.may_replace(numbers, numbers)


@pytest.mark.parametrize(("language", "kinds"), [("de", []), ("cs_CZ", []), ("fr", ["list marker"])])
def test_a_number_with_a_full_stop_may_be_an_ordinal(language: str, kinds: list[str]) -> None:
    guard = make_guard(replace(PROVENANCE, src_lang=language, tgt_lang="en"))
    assert [fault.kind for fault in guard.find_faults("3. Platz", "Third place")] == kinds


def test_only_the_marker_of_a_list_item_is_copied() -> None:
    guard = make_guard(PROVENANCE)
    source = "* The cat* is 1) here"
    faults = guard.find_faults(source, "Die Katze ist hier")
    pieces = guard.divide(source, [fault for fault in faults if fault.kind == "list marker"], lambda texts: [9])
    assert pieces == [Piece("* ", is_copied=True), Piece("The cat* is 1) here")]


def test_a_copy_is_no_fault_within_one_language() -> None:
    guard = make_guard(ModelProvenance({}, "en", "en_GB", 99))
    assert not guard.find_faults("the dog is asleep now", "the dog is asleep now")


def test_translations_without_faults_are_not_searched_again(run: Run) -> None:
    lines = ["a dog sleeps", "", "12", LONG]
    texts, guard, (found, searches) = run({}, lines)
    assert texts == [line.upper() for line in lines]
    assert (found, guard.describe(), searches) == ([], "", [(1, ["a dog sleeps", LONG])])


def test_the_best_hypothesis_without_the_fault_is_chosen(run: Run) -> None:
    table = {"with 34 dogs": ["mit Hunden", "mit 35 Hunden", "mit 34 Hunden", "34 Hunde"]}
    texts, guard, (found, searches) = run(table, ["a", "with 34 dogs"])
    assert texts == ["A", "mit 34 Hunden"]
    assert found == [(2, ["number 34"], [])]
    assert (guard.n_repaired, guard.remaining.total()) == (1, 0)
    assert searches[1:] == [(5, ["with 34 dogs"])], "one more search, of this line"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("call 2.200.112, please", "RUFE 2.200.112, BITTE"),
        ("see (www.a.org) now", "SIEH (www.a.org) JETZT"),
        ("https://a.org/b", "https://a.org/b"),
        ("nice😍👍🏽!", "NETT😍👍🏽!"),
        ("1. see", "1. SIEH"),
        ("• nice", "• NETT"),
        ("> see", "> SIEH"),
    ],
)
def test_lost_items_are_copied_between_the_translated_parts(run: Run, line: str, expected: str) -> None:
    words = {"call": "RUFE", "please": "BITTE", "see": "SIEH", "now": "JETZT", "nice": "NETT"}
    table = {line: ["nichts da"], **{word: [text] for word, text in words.items()}}
    texts, guard, _ = run(table, [line])
    assert texts == [expected]
    assert guard.n_repaired == 1


def test_text_in_an_unknown_script_is_copied_and_reported(run: Run) -> None:
    texts, guard, (_, searches) = run({}, ["Собака спит", "a dog"])
    assert texts == ["Собака спит", "A DOG"]
    assert guard.remaining == {"unknown script": 1} and len(searches) == 1


def test_the_scripts_of_all_source_languages_are_known() -> None:
    train = [{"name": code, "src_lang": code, "src": code, "tgt": "g"} for code in ("de", "ru")]
    data = DataConfig.model_validate({"src_lang": "de", "tgt_lang": "en", "train": train})
    provenance = replace(PROVENANCE, src_langs=data.source_languages_of(None))
    guard = make_guard(provenance)
    assert not guard.find_faults("Собака спит", "the dog sleeps")
    assert guard.find_faults("狗在睡觉", "the dog sleeps")


def test_a_chunk_is_halved_until_its_parts_have_no_fault(run: Run) -> None:
    line = f"{LONG}, {LONG} {LONG}"
    table = {text: ["kurz"] for text in (line, f"{LONG} {LONG}", f"{LONG},")}
    texts, _, (found, _) = run(table, [line])
    assert texts == [line.upper()]
    assert found == [(1, ["short"], [])]


def test_the_first_translation_stays_if_none_has_fewer_faults(run: Run) -> None:
    texts, guard, (found, _) = run({"it": ["", ".", "!"]}, ["it", "to"])
    assert texts == ["", "TO"]
    assert found == [(1, ["empty"], ["empty"])]
    assert "empty: 1" in guard.describe()


def test_the_guard_is_off_for_samples_and_on_request() -> None:
    for options in ({"sample": True}, {"guard": False}):
        assert Guard.make(PROVENANCE, DecodingConfig().with_options(options)) is None
