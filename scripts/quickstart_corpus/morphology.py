"""Noun phrases and pronouns: gender, case, number, and the endings that agree with them.

The rules are those of any reference grammar (Duden: declension of articles, adjectives and nouns). Adjectives are weak
after an article that shows the case ("der alte Hund"), mixed after ein, kein and possessives ("ein alter Hund"), and
strong without an article ("alte Hunde", "kalte Milch").
"""

from typing import NamedTuple

from .lexicon import NUMBERS, Adjective, Case, Gender, Name, Noun, Person, Preposition

CaseTable = dict[str, dict[str, str]]  # by case, then by gender or "p" for plural: an ending or an article
Pairs = tuple[tuple[str, str], ...]  # English lemmas: (adjective, noun) or (verb, object)


class Text(NamedTuple):
    """An English text, its German translation, and the word pairs that it holds."""

    en: str
    de: str
    pairs: Pairs = ()


EMPTY = Text("", "")


def sequence(en: str, de: str, *parts: Text) -> Text:
    """Fill an English and a German template with the parts, in the same order."""
    pairs: Pairs = tuple(pair for part in parts for pair in part.pairs)
    return Text(en.format(*(part.en for part in parts)), de.format(*(part.de for part in parts)), pairs)


def _table(nominative: str, accusative: str, dative: str, genitive: str) -> CaseTable:
    rows = {"nom": nominative, "acc": accusative, "dat": dative, "gen": genitive}
    return {
        case: dict(zip("mfnp", (cell.strip("-") for cell in row.split()), strict=True)) for case, row in rows.items()
    }


#                masculine feminine neuter plural, in the order nominative, accusative, dative, genitive
_ARTICLE = _table("der die das die", "den die das die", "dem der dem den", "des der des der")
_DER_WORD = _table("er e es e", "en e es e", "em er em en", "es er es er")
_EIN_WORD = _table("- e - e", "en e - e", "em er em en", "es er es er")
_WEAK = _table("e e e en", "en e e en", "en en en en", "en en en en")
_MIXED = _table("er e es en", "en e es en", "en en en en", "en en en en")
_STRONG = _table("er e es e", "en e es e", "em er em en", "en er en er")


class Determiner(NamedTuple):
    en: str
    en_plural: str
    forms: CaseTable
    adjective_endings: CaseTable
    definite: bool


def _inflect(stem: str, endings: CaseTable) -> CaseTable:
    return {case: {column: stem + ending for column, ending in row.items()} for case, row in endings.items()}


def _repeat_form(word: str) -> CaseTable:
    return {case: dict.fromkeys("mfnp", word) for case in ("nom", "acc", "dat", "gen")}


def _possessive(en: str, stem: str) -> Determiner:
    return Determiner(en, en, _inflect(stem, _EIN_WORD), _MIXED, True)


THE = Determiner("the", "the", _ARTICLE, _WEAK, True)
THIS = Determiner("this", "these", _inflect("dies", _DER_WORD), _WEAK, True)
WHICH = Determiner("which", "which", _inflect("welch", _DER_WORD), _WEAK, True)
A = Determiner("a", "", _inflect("ein", _EIN_WORD), _MIXED, False)
NO = Determiner("no", "no", _inflect("kein", _EIN_WORD), _MIXED, False)
BARE = Determiner("", "", _repeat_form(""), _STRONG, False)
HOW_MANY = Determiner("", "how many", _repeat_form("wie viele"), _STRONG, False)
MY, HIS, HER = _possessive("my", "mein"), _possessive("his", "sein"), _possessive("her", "ihr")
OUR, THEIR = _possessive("our", "unser"), _possessive("their", "ihr")
POSSESSIVES = (MY, HIS, HER, OUR, THEIR)
COUNTS = tuple(Determiner("", en, _repeat_form(de), _STRONG, False) for en, de in NUMBERS)


def decline(noun: Noun, case: Case, plural: bool) -> str:
    """Return the form of a noun.

    The dative plural adds -n unless the plural ends in -n or -s. Weak nouns end in -(e)n except in the nominative
    singular. Feminines have no ending in the singular. The dictionary lists the genitive of the others.
    """
    if plural:
        needs_n = case == "dat" and not noun.de_plural.endswith(("n", "s"))
        return noun.de_plural + "n" if needs_n else noun.de_plural
    if noun.weak and case != "nom":
        return noun.de_plural
    if case == "gen" and noun.gender != "f":
        return noun.genitive
    return noun.de


class ProperName(NamedTuple):
    name: Name

    @property
    def en(self) -> str:
        return self.name.en

    @property
    def en_object(self) -> str:
        return self.name.en

    @property
    def person(self) -> Person:
        return "3s"

    @property
    def pairs(self) -> Pairs:
        return ()

    def de(self, case: Case) -> str:
        return self.name.en + "s" if case == "gen" else self.name.en


class NounPhrase(NamedTuple):
    noun: Noun
    determiner: Determiner
    plural: bool = False
    adjective: Adjective | None = None
    possessor: "NounPhrase | ProperName | None" = None  # "the teacher's book", "Anna's book"; instead of THE
    relative: Text = EMPTY

    @property
    def person(self) -> Person:
        return "3p" if self.plural else "3s"

    @property
    def pairs(self) -> Pairs:
        pairs = ((self.adjective.en, self.noun.en),) if self.adjective else ()
        if self.possessor is not None:
            pairs += self.possessor.pairs
        return pairs + self.relative.pairs

    @property
    def en(self) -> str:
        noun = self.noun.en_plural if self.plural else self.noun.en
        head = f"{self.adjective.en} {noun}" if self.adjective else noun
        if self.possessor is not None:
            determiner = f"{self.possessor.en}'s"
        else:
            determiner = self.determiner.en_plural if self.plural else self.determiner.en
            if determiner == "a" and head[0] in "aeiou":
                determiner = "an"
        return " ".join(filter(None, (determiner, head, self.relative.en)))

    @property
    def en_object(self) -> str:
        return self.en

    def de(self, case: Case) -> str:
        noun, adjective, possessor = self.noun, self.adjective, self.possessor
        column = "p" if self.plural else noun.gender
        article, endings = self.determiner.forms[case][column], self.determiner.adjective_endings
        after = ""
        if isinstance(possessor, ProperName):  # "Annas altes Auto": no article, so the adjective is strong
            article, endings = possessor.de("gen"), _STRONG
        elif possessor is not None:
            after = " " + possessor.de("gen")
        phrase = decline(noun, case, self.plural) + after
        if adjective is not None:
            phrase = f"{adjective.de_stem or adjective.de}{endings[case][column]} {phrase}"
        if article:
            phrase = f"{article} {phrase}"
        return f"{phrase}, {self.relative.de}," if self.relative.de else phrase


class Pronoun(NamedTuple):
    en: str
    en_object: str
    person: Person
    nominative: str
    accusative: str
    dative: str
    pairs: Pairs = ()

    def de(self, case: Case) -> str:
        if case == "nom":
            return self.nominative
        return self.accusative if case == "acc" else self.dative


Nominal = NounPhrase | ProperName | Pronoun

ME, WE = Pronoun("I", "me", "1s", "ich", "mich", "mir"), Pronoun("we", "us", "1p", "wir", "uns", "uns")
HE, SHE = Pronoun("he", "him", "3s", "er", "ihn", "ihm"), Pronoun("she", "her", "3s", "sie", "sie", "ihr")
THEY = Pronoun("they", "them", "3p", "sie", "sie", "ihnen")
IT = {
    "m": Pronoun("it", "it", "3s", "er", "ihn", "ihm"),
    "f": Pronoun("it", "it", "3s", "sie", "sie", "ihr"),
    "n": Pronoun("it", "it", "3s", "es", "es", "ihm"),
}
WHO = Pronoun("who", "whom", "3s", "wer", "wen", "wem")
WHAT = Pronoun("what", "what", "3s", "was", "was", "")
REFLEXIVES: dict[Person, str] = {"1s": "mich", "3s": "sich", "1p": "uns", "3p": "sich"}
_HUMAN_KINDS = ("kin", "elder", "person", "child")


def is_human(noun: Noun) -> bool:
    return noun.kind in _HUMAN_KINDS


def gender(nominal: ProperName | NounPhrase) -> Gender:
    return nominal.name.gender if isinstance(nominal, ProperName) else nominal.noun.gender


def pronoun_for(antecedent: Nominal) -> Pronoun | None:
    """Return the personal pronoun for an antecedent: "die Tasse ... sie", "der Tisch ... er".

    It is None for a neuter person (das Mädchen, das Kind), where usage wavers between grammatical and natural gender.
    """
    if isinstance(antecedent, Pronoun):
        return antecedent
    if antecedent.person == "3p":
        return THEY
    if isinstance(antecedent, NounPhrase) and not is_human(antecedent.noun):
        return pronoun_for_thing(antecedent)
    return {"m": HE, "f": SHE, "n": None}[gender(antecedent)]


def pronoun_for_thing(antecedent: NounPhrase) -> Pronoun:
    """Return the pronoun for a thing or an animal. German "it" has the gender of the noun."""
    return THEY if antecedent.plural else IT[antecedent.noun.gender]


def possessive_for(owner: Nominal) -> Determiner | None:
    """Return the possessive of an owner: "the boy ... his", "der Junge ... sein"."""
    pronoun = pronoun_for(owner)
    return {ME: MY, WE: OUR, HE: HIS, SHE: HER, THEY: THEIR}.get(pronoun) if pronoun else None


def relative_pronoun(antecedent: NounPhrase) -> Pronoun:
    """Return the relative pronoun, with the gender and number of its antecedent."""
    if antecedent.plural:
        forms = ("die", "die", "denen")
    else:
        forms = {"m": ("der", "den", "dem"), "f": ("die", "die", "der"), "n": ("das", "das", "dem")}[
            antecedent.noun.gender
        ]
    subject, direct = ("who", "whom") if is_human(antecedent.noun) else ("that", "that")
    return Pronoun(subject, direct, antecedent.person, *forms)


_CONTRACTIONS = {
    ("in", "dem"): "im", ("an", "dem"): "am", ("zu", "dem"): "zum", ("zu", "der"): "zur", ("von", "dem"): "vom",
    ("bei", "dem"): "beim", ("in", "das"): "ins", ("an", "das"): "ans",
}  # fmt: skip


def prepositional(preposition: Preposition, nominal: Nominal) -> Text:
    """Return a prepositional phrase. The preposition governs the case and contracts: "im Garten", "zur Schule"."""
    phrase = nominal.de(preposition.case)
    german = f"{preposition.de} {phrase}"
    if isinstance(nominal, NounPhrase) and nominal.determiner is THE:
        article, _, rest = phrase.partition(" ")
        contraction = _CONTRACTIONS.get((preposition.de, article))
        german = f"{contraction} {rest}" if contraction else german
    return Text(f"{preposition.en} {nominal.en_object}", german, nominal.pairs)
