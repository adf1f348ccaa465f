"""The quickstart grammar: expected forms, written by hand after a reference grammar."""

import pytest
from quickstart_corpus import lexicon, verbs
from quickstart_corpus.clause import Clause, after_subordinate, coordinate, main_clause, purpose, question, subordinate
from quickstart_corpus.lexicon import NOUNS, Adverb
from quickstart_corpus.morphology import (
    BARE,
    COUNTS,
    HE,
    HER,
    HIS,
    IT,
    ME,
    MY,
    NO,
    OUR,
    SHE,
    THE,
    THEIR,
    THEY,
    THIS,
    WE,
    WHO,
    A,
    Determiner,
    NounPhrase,
    ProperName,
    Text,
    possessive_for,
    prepositional,
    pronoun_for,
    relative_pronoun,
)

ADJECTIVE = {adjective.en: adjective for adjective in lexicon.ADJECTIVES}
ANNA, PETER = ProperName(lexicon.Name("Anna", "f")), ProperName(lexicon.Name("Peter", "m"))
TODAY, YESTERDAY = Adverb("today", "heute"), Adverb("yesterday", "gestern")
OFTEN = Adverb("often", "oft", True)


def np(words: str, determiner: Determiner = THE, possessor: NounPhrase | ProperName | None = None) -> NounPhrase:
    """np("old dogs", A): an adjective if there are two words; plural if the noun is written so."""
    *adjectives, word = words.split()
    plurals = {noun.en_plural: noun for noun in NOUNS.values() if noun.en_plural}
    plural = word not in NOUNS
    noun = plurals[word] if plural else NOUNS[word]
    return NounPhrase(noun, determiner, plural, ADJECTIVE[adjectives[0]] if adjectives else None, possessor)


def is_(word: str) -> Text:
    return Text(ADJECTIVE[word].en, ADJECTIVE[word].de)


@pytest.mark.parametrize(
    ("phrase", "nominative", "accusative", "dative", "genitive"),
    [
        # after the definite article: weak
        (np("old dog"), "der alte Hund", "den alten Hund", "dem alten Hund", None),
        (np("new lamp"), "die neue Lampe", "die neue Lampe", "der neuen Lampe", None),
        (np("rich father"), "der reiche Vater", "den reichen Vater", "dem reichen Vater", "des reichen Vaters"),
        # after ein, kein and possessives: mixed
        (np("old dog", A), "ein alter Hund", "einen alten Hund", "einem alten Hund", None),
        (np("red hats", NO), "keine roten Hüte", "keine roten Hüte", "keinen roten Hüten", None),
        (np("old friend", OUR), "unser alter Freund", "unseren alten Freund", "unserem alten Freund", None),
        (np("father", MY), "mein Vater", "meinen Vater", "meinem Vater", "meines Vaters"),
        # without an article: strong
        (np("old books", BARE), "alte Bücher", "alte Bücher", "alten Büchern", None),
        (np("cold milk", BARE), "kalte Milch", "kalte Milch", "kalter Milch", None),
        (np("hot coffee", BARE), "heißer Kaffee", "heißen Kaffee", "heißem Kaffee", None),
        (np("fresh bread", BARE), "frisches Brot", "frisches Brot", "frischem Brot", None),
        # dieser, welcher
        (np("big table", THIS), "dieser große Tisch", "diesen großen Tisch", "diesem großen Tisch", None),
        # stems: teuer, dunkel, müde
        (np("expensive car", A), "ein teures Auto", "ein teures Auto", "einem teuren Auto", None),
        (np("dark forest"), "der dunkle Wald", "den dunklen Wald", "dem dunklen Wald", None),
        (np("tired child", A), "ein müdes Kind", "ein müdes Kind", "einem müden Kind", None),
        # weak nouns
        (np("boy"), "der Junge", "den Jungen", "dem Jungen", "des Jungen"),
        (np("farmer"), "der Bauer", "den Bauern", "dem Bauern", "des Bauern"),
        # plurals of every class, with their dative
        (np("daughters"), "die Töchter", "die Töchter", "den Töchtern", None),
        (np("museums"), "die Museen", "die Museen", "den Museen", None),
        # possessors: genitive after, names before (and then the adjective is strong)
        (np("lamp", possessor=np("boy")), "die Lampe des Jungen", "die Lampe des Jungen", "der Lampe des Jungen", None),
        (np("old hat", possessor=ANNA), "Annas alter Hut", "Annas alten Hut", "Annas altem Hut", None),
    ],
)  # fmt: skip
def test_noun_phrases_decline_in_all_cases(
    phrase: NounPhrase, nominative: str, accusative: str, dative: str, genitive: str | None
):
    assert phrase.de("nom") == nominative
    assert phrase.de("acc") == accusative
    assert phrase.de("dat") == dative
    if genitive is not None:
        assert phrase.de("gen") == genitive


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        (np("apple", A), "an apple"),
        (np("old man", A), "an old man"),
        (np("big apple", A), "a big apple"),
        (np("books", THIS), "these books"),
        (np("hat", possessor=np("father", MY)), "my father's hat"),
        (np("dogs", COUNTS[0]), "two dogs"),
    ],
)
def test_english_noun_phrases(phrase: NounPhrase, expected: str):
    assert phrase.en == expected


@pytest.mark.parametrize(
    ("preposition", "phrase", "en", "de"),
    [
        (lexicon.IN, np("garden"), "in the garden", "im Garten"),
        (lexicon.IN, np("house", A), "in a house", "in einem Haus"),
        (lexicon.INTO, np("old museum"), "into the old museum", "ins alte Museum"),
        (lexicon.AT, np("station"), "at the station", "am Bahnhof"),
        (lexicon.TO, np("school"), "to the school", "zur Schule"),
        (lexicon.FROM, np("market"), "from the market", "vom Markt"),
        (lexicon.THROUGH, np("big forest"), "through the big forest", "durch den großen Wald"),
        (lexicon.WITH, THEY, "with them", "mit ihnen"),
        (lexicon.WAITING_FOR, np("bus"), "for the bus", "auf den Bus"),
        (lexicon.STATIC["on"], np("table"), "on the table", "auf dem Tisch"),
        (lexicon.DIRECTED["on"], np("table"), "on the table", "auf den Tisch"),
        (lexicon.ON_WALL, np("wall"), "on the wall", "an der Wand"),
    ],
)
def test_prepositions_govern_case_and_contract(preposition: lexicon.Preposition, phrase: NounPhrase, en: str, de: str):
    assert prepositional(preposition, phrase)[:2] == (en, de)


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        (verbs.READ, "lese liest lesen gelesen"),
        (verbs.GIVE, "gebe gibt geben gegeben"),
        (verbs.FORGET, "vergesse vergisst vergessen vergessen"),
        (verbs.DRIVE, "fahre fährt fahren gefahren"),
        (verbs.INVITE, "lade lädt laden eingeladen"),
        (verbs.WORK, "arbeite arbeitet arbeiten gearbeitet"),
        (verbs.OPEN, "öffne öffnet öffnen geöffnet"),
        (verbs.REPAIR, "repariere repariert reparieren repariert"),
        (verbs.UNDERSTAND, "verstehe versteht verstehen verstanden"),
        (verbs.KNOW, "weiß weiß wissen gewusst"),
        (verbs.LIKE, "mag mag mögen gemocht"),
        (verbs.BE, "bin ist sind gewesen"),
        (verbs.HAVE, "habe hat haben gehabt"),
    ],
)
def test_german_verbs_conjugate(verb: verbs.Verb, forms: str):
    assert [verb.de_first, verb.de_third, verb.de_plural, verb.participle] == forms.split()


TEACHER_READS = Clause(np("teacher"), verbs.READ, "progressive", accusative=np("book", A))
MAIN_CLAUSES = [
    # verb second, whatever opens the clause
    (TEACHER_READS, "the teacher is reading a book", "der Lehrer liest ein Buch"),
    (TEACHER_READS._replace(time=TODAY), "the teacher is reading a book today", "der Lehrer liest heute ein Buch"),
    (TEACHER_READS._replace(time=TODAY, front="time"),
     "today the teacher is reading a book", "heute liest der Lehrer ein Buch"),
    (TEACHER_READS._replace(place=prepositional(lexicon.IN, np("garden")), front="place"),
     "in the garden the teacher is reading a book", "im Garten liest der Lehrer ein Buch"),
    # place before an indefinite object, after a definite one; time, manner, place
    (TEACHER_READS._replace(place=Text("at home", "zu Hause")),
     "the teacher is reading a book at home", "der Lehrer liest zu Hause ein Buch"),
    (TEACHER_READS._replace(accusative=np("book"), place=Text("at home", "zu Hause")),
     "the teacher is reading the book at home", "der Lehrer liest das Buch zu Hause"),
    (Clause(ME, verbs.WORK, "progressive", time=TODAY, manner=lexicon.QUIETLY, place=Text("at home", "zu Hause")),
     "I am working quietly at home today", "ich arbeite heute leise zu Hause"),
    (Clause(SHE, verbs.READ, time=OFTEN, accusative=np("newspapers", BARE)),
     "she often reads newspapers", "sie liest oft Zeitungen"),
    # perfect with haben and with sein; preterite of sein, haben, mögen
    (Clause(np("boy"), verbs.BUY, "past", accusative=np("ball")), "the boy bought the ball",
     "der Junge hat den Ball gekauft"),
    (Clause(np("boy"), verbs.RUN, "past", complement=prepositional(lexicon.TO, np("school"))),
     "the boy ran to the school", "der Junge ist zur Schule gelaufen"),
    (Clause(WE, verbs.STAY, "past", place=Text("at home", "zu Hause")), "we stayed at home",
     "wir sind zu Hause geblieben"),
    (Clause(ME, verbs.BE, "past", predicate=is_("tired")), "I was tired", "ich war müde"),
    (Clause(THEY, verbs.HAVE, "past", accusative=np("dog", A)), "they had a dog", "sie hatten einen Hund"),
    # separable verbs
    (Clause(ANNA, verbs.GET_UP, "progressive"), "Anna is getting up", "Anna steht auf"),
    (Clause(ANNA, verbs.CALL, "past", accusative=np("aunt", HER)), "Anna called her aunt",
     "Anna hat ihre Tante angerufen"),
    (Clause(np("student"), verbs.PICK_UP, "progressive", accusative=IT["m"]), "the student is picking it up",
     "der Student holt ihn ab"),
    (Clause(np("student"), verbs.TURN_OFF, modal=verbs.HAVE_TO, accusative=np("lamp")),
     "the student has to turn off the lamp", "der Student muss die Lampe ausschalten"),
    # modal verbs, future, gern
    (Clause(WE, verbs.REPAIR, modal=verbs.CAN, negated=True, accusative=np("car")), "we cannot repair the car",
     "wir können das Auto nicht reparieren"),
    (Clause(ME, verbs.TRAVEL, modal=verbs.WILL, complement=Text("to Berlin", "nach Berlin")),
     "I will travel to Berlin", "ich werde nach Berlin reisen"),
    (Clause(np("child"), verbs.EAT, "past", modal=verbs.WANT_TO, accusative=np("cake", A)),
     "the child wanted to eat a cake", "das Kind wollte einen Kuchen essen"),
    (Clause(np("girls"), verbs.SING, modal=verbs.LIKE_TO), "the girls like to sing", "die Mädchen singen gern"),
    (Clause(HE, verbs.DRINK, modal=verbs.LIKE_TO, negated=True, accusative=np("coffee", BARE)),
     "he does not like to drink coffee", "er trinkt nicht gern Kaffee"),
    # kein for the indefinite, nicht elsewhere
    (TEACHER_READS._replace(negated=True), "the teacher is not reading a book", "der Lehrer liest kein Buch"),
    (TEACHER_READS._replace(negated=True, accusative=np("book")), "the teacher is not reading the book",
     "der Lehrer liest das Buch nicht"),
    (Clause(HE, verbs.DRINK, negated=True, accusative=np("cold milk", BARE)), "he does not drink cold milk",
     "er trinkt keine kalte Milch"),
    (Clause(SHE, verbs.HAVE, negated=True, accusative=np("dog", A)), "she has no dog", "sie hat keinen Hund"),
    (Clause(np("lamp"), verbs.BE, negated=True, predicate=is_("expensive")), "the lamp is not expensive",
     "die Lampe ist nicht teuer"),
    (Clause(HE, verbs.GO, "progressive", negated=True, complement=prepositional(lexicon.INTO, np("house"))),
     "he is not going into the house", "er geht nicht ins Haus"),
    (Clause(PETER, verbs.FALL_ASLEEP, "past", negated=True), "Peter did not fall asleep",
     "Peter ist nicht eingeschlafen"),
    # datives: helfen, gehören, dative before accusative, pronouns before nouns
    (Clause(np("son"), verbs.HELP, "past", dative=np("farmer")), "the son helped the farmer",
     "der Sohn hat dem Bauern geholfen"),
    (Clause(np("keys"), verbs.BELONG, dative=ME), "the keys belong to me", "die Schlüssel gehören mir"),
    (Clause(np("mother"), verbs.GIVE, "past", dative=np("children"), accusative=np("apple", A)),
     "the mother gave the children an apple", "die Mutter hat den Kindern einen Apfel gegeben"),
    (Clause(np("mother"), verbs.GIVE, "past", dative=np("child"), accusative=IT["f"]),
     "the mother gave it to the child", "die Mutter hat sie dem Kind gegeben"),
    (Clause(np("mother"), verbs.SHOW, dative=HE, accusative=np("picture")), "the mother shows him the picture",
     "die Mutter zeigt ihm das Bild"),
    # two-way prepositions
    (Clause(np("aunt"), verbs.PUT, "past", accusative=np("cup", A),
            complement=prepositional(lexicon.DIRECTED["on"], np("table"))),
     "the aunt put a cup on the table", "die Tante hat eine Tasse auf den Tisch gestellt"),
    (Clause(np("cup"), verbs.STAND, "progressive", complement=prepositional(lexicon.STATIC["on"], np("table"))),
     "the cup is standing on the table", "die Tasse steht auf dem Tisch"),
    # reflexive pronouns precede a noun and follow a pronoun
    (Clause(np("boys"), verbs.REST, "past", time=YESTERDAY, front="time"),
     "yesterday the boys rested", "gestern haben sich die Jungen ausgeruht"),
    (Clause(ME, verbs.HURRY, modal=verbs.HAVE_TO), "I have to hurry", "ich muss mich beeilen"),
    # professions without article, unless described or denied
    (Clause(np("brother", MY), verbs.BE, predicate=np("doctor", A)), "my brother is a doctor", "mein Bruder ist Arzt"),
    (Clause(PETER, verbs.BE, predicate=np("famous painter", A)),
     "Peter is a famous painter", "Peter ist ein berühmter Maler"),
    (Clause(PETER, verbs.BE, negated=True, predicate=np("student", A)), "Peter is not a student",
     "Peter ist kein Student"),
]  # fmt: skip


@pytest.mark.parametrize(("clause", "en", "de"), MAIN_CLAUSES)
def test_main_clauses_translate(clause: Clause, en: str, de: str):
    assert main_clause(clause)[:2] == (en, de)


def test_questions_put_the_finite_verb_first():
    assert question(TEACHER_READS)[:2] == ("is the teacher reading a book", "liest der Lehrer ein Buch")
    bought = Clause(SHE, verbs.BUY, "past", accusative=np("hat", A))
    assert question(bought)[:2] == ("did she buy a hat", "hat sie einen Hut gekauft")
    get_up = Clause(np("doctor"), verbs.GET_UP, time=OFTEN)
    assert question(get_up)[:2] == ("does the doctor often get up", "steht der Arzt oft auf")
    assert question(Clause(THEY, verbs.BE, predicate=is_("happy"))).de == "sind sie glücklich"
    who_loves = Clause(WHO, verbs.LOVE, accusative=np("queen"))
    assert main_clause(who_loves)[:2] == ("who loves the queen", "wer liebt die Königin")


def test_subordinate_clauses_put_the_finite_verb_last():
    assert subordinate(Clause(HE, verbs.BE, predicate=is_("sick"))).de == "er krank ist"
    assert subordinate(Clause(HE, verbs.GET_UP)).de == "er aufsteht"
    assert subordinate(Clause(HE, verbs.GET_UP, "past")).de == "er aufgestanden ist"
    turn_on = Clause(HE, verbs.TURN_ON, modal=verbs.WANT_TO, accusative=IT["n"])
    assert subordinate(turn_on).de == "er es einschalten will"
    assert subordinate(Clause(np("teacher"), verbs.REST, "past")).de == "sich der Lehrer ausgeruht hat"
    read = Clause(np("teacher"), verbs.READ, "past", accusative=np("letter"), time=YESTERDAY, negated=False)
    assert subordinate(read).de == "der Lehrer gestern den Brief gelesen hat"
    assert after_subordinate(Clause(WE, verbs.STAY, place=Text("at home", "zu Hause"))).de == "bleiben wir zu Hause"


def test_purpose_puts_zu_inside_a_separable_verb():
    buy = Clause(HE, verbs.BUY, accusative=np("bread", BARE))
    assert purpose(buy)[:2] == ("in order to buy bread", "um Brot zu kaufen")
    assert purpose(Clause(HE, verbs.PICK_UP, accusative=np("sister", HIS))).de == "um seine Schwester abzuholen"
    assert purpose(Clause(ME, verbs.REST)).de == "um mich auszuruhen"


def test_a_shared_auxiliary_is_named_once():
    came = Clause(HE, verbs.COME, "past", complement=Text("home", "nach Hause"))
    ate = Clause(HE, verbs.EAT, "past", accusative=np("soup"))
    drank = Clause(HE, verbs.DRINK, "past", accusative=np("water", BARE))
    assert coordinate(came, ate)[:2] == (
        "he came home and ate the soup", "er ist nach Hause gekommen und hat die Suppe gegessen"
    )  # fmt: skip
    assert coordinate(ate, drank).de == "er hat die Suppe gegessen und Wasser getrunken"


def test_pronouns_agree_with_their_antecedent():
    assert [pronoun_for(np(word)) for word in ("table", "cup", "book", "books")] == [IT["m"], IT["f"], IT["n"], THEY]
    assert [pronoun_for(np(word)) for word in ("uncle", "queen", "girl", "girls")] == [HE, SHE, None, THEY]
    assert [possessive_for(owner) for owner in (ME, PETER, ANNA, np("children"))] == [MY, HIS, HER, THEIR]
    assert [relative_pronoun(np("man")).de(case) for case in ("nom", "acc", "dat")] == ["der", "den", "dem"]
    assert [relative_pronoun(np("lamp")).de(case) for case in ("nom", "acc", "dat")] == ["die", "die", "der"]
    assert [relative_pronoun(np("children")).de(case) for case in ("nom", "acc", "dat")] == ["die", "die", "denen"]


def test_relative_clauses_are_set_off_by_commas():
    reading = subordinate(Clause(relative_pronoun(np("man")), verbs.READ, "progressive", accusative=np("book", A)))
    man = np("man")._replace(relative=reading)
    assert main_clause(Clause(man, verbs.BE, predicate=is_("tired")))[:2] == (
        "the man who is reading a book is tired", "der Mann, der ein Buch liest, ist müde"
    )  # fmt: skip
