"""Clauses, and their word order in English and in German.

A `Clause` states who does what to whom, when, where and how. The German rules (Duden grammar: sentence bracket and
order of the middle field) are:

- main clause: one constituent, the finite verb, the middle field, the rest of the verb ("Heute hat er ... gekauft");
- yes/no question, and main clause after a subordinate clause: the finite verb first;
- subordinate clause: the finite verb last, a separable prefix joined to it ("..., weil er früh aufsteht");
- middle field: pronouns before nouns, dative before accusative, definite object before `nicht` and place, indefinite
  object after them; time before manner before place; directions and predicates last;
- negation: `kein` for an indefinite object, otherwise `nicht` after definite objects and before manner and place;
- tense: the English past is the German perfect, or the preterite of sein, haben, wissen, mögen and the modals.
"""

from typing import Literal, NamedTuple

from .lexicon import PROFESSIONS, Adverb
from .morphology import BARE, EMPTY, NO, REFLEXIVES, A, Determiner, Nominal, NounPhrase, Pairs, Person, Pronoun, Text
from .verbs import BE, HAVE, Modal, Verb

Tense = Literal["present", "progressive", "past"]


class Clause(NamedTuple):
    subject: Nominal
    verb: Verb
    tense: Tense = "present"
    modal: Modal | None = None
    negated: bool = False
    dative: Nominal | None = None
    accusative: Nominal | None = None
    predicate: Text | NounPhrase | None = None  # after sein: an adjective, or a noun in the nominative
    complement: Text = EMPTY  # direction, or the prepositional object that the verb demands
    companion: Text = EMPTY
    place: Text = EMPTY
    manner: Adverb | None = None
    time: Adverb | None = None
    front: Literal["subject", "time", "place"] = "subject"  # first constituent of a main clause

    @property
    def pairs(self) -> Pairs:
        """Return the word pairs of the clause: adjectives with their nouns, the verb with its objects."""
        pairs = self.subject.pairs + self.complement.pairs + self.companion.pairs + self.place.pairs
        for nominal in (self.dative, self.accusative):
            if nominal is not None:
                pairs += nominal.pairs
            if isinstance(nominal, NounPhrase):
                pairs += ((self.verb.lemma, nominal.noun.en),)
        return pairs + self.predicate.pairs if self.predicate is not None else pairs


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)


# --- English -----------------------------------------------------------------------------------------------------


_BE_PRESENT: dict[Person, str] = {"1s": "am", "3s": "is", "1p": "are", "3p": "are"}
_BE_PAST: dict[Person, str] = {"1s": "was", "3s": "was", "1p": "were", "3p": "were"}


def _english_verb(clause: Clause, do_support: bool) -> tuple[str, str]:
    """Return the auxiliary, which precedes `not` and opens a question, and the rest of the verb."""
    verb, modal, person = clause.verb, clause.modal, clause.subject.person
    past = clause.tense == "past"
    if modal is not None and not modal.full:
        return (modal.en_past if past else modal.en), verb.en
    if modal is None and clause.tense == "progressive":
        return _BE_PRESENT[person], verb.en_ing
    if modal is None and verb == BE:
        return (_BE_PAST if past else _BE_PRESENT)[person], ""
    base, third, simple_past = (verb.en, verb.en_third, verb.en_past)
    rest = ""
    if modal is not None:
        base, third, simple_past, rest = modal.en, modal.en_third, modal.en_past, verb.en
    if do_support:
        return "did" if past else "does" if person == "3s" else "do", _join(base, rest)
    if past:
        return "", _join(simple_past, rest)
    return "", _join(third if person == "3s" else base, rest)


def _has_no(clause: Clause) -> bool:
    """ "has no dog", where other verbs say "does not buy a dog"."""
    return clause.negated and clause.verb == HAVE and clause.modal is None


def _english_objects(clause: Clause) -> str:
    """ "gives the child the ball", but "gives it to the child"; "picks up the child", but "picks it up"."""
    verb, dative, accusative = clause.verb, clause.dative, clause.accusative
    direct = accusative.en_object if accusative else ""
    indirect = dative.en_object if dative else ""
    if isinstance(accusative, NounPhrase) and _has_no(clause):
        direct = accusative._replace(determiner=NO).en
    if isinstance(accusative, Pronoun):
        return _join(verb.preposition, direct, verb.particle, "to " + indirect if dative else "")
    return _join(verb.preposition, verb.particle, indirect, direct)


def _english_tail(clause: Clause) -> str:
    predicate, time = clause.predicate, clause.time
    return _join(
        _english_objects(clause),
        predicate.en if predicate is not None else "",
        clause.manner.en if clause.manner else "",
        clause.complement.en,
        clause.companion.en,
        clause.place.en if clause.front != "place" else "",
        time.en if time and not time.mid and clause.front != "time" else "",
    )


def english(clause: Clause, *, question: bool = False, subject: bool = True) -> str:
    negated_by_not = clause.negated and not _has_no(clause)
    auxiliary, verb = _english_verb(clause, do_support=question or negated_by_not)
    negation = "not" if negated_by_not else ""
    if auxiliary == "can" and negation:
        auxiliary, negation = "cannot", ""
    adverb = clause.time.en if clause.time and clause.time.mid and clause.front != "time" else ""
    who = clause.subject.en if subject else ""
    opening = _join(auxiliary, who) if question else _join(who, auxiliary)
    if clause.front == "time" and clause.time:
        opening = _join(clause.time.en, opening)
    if clause.front == "place":
        opening = _join(clause.place.en, opening)
    return _join(opening, negation, adverb, verb, _english_tail(clause))


# --- German ------------------------------------------------------------------------------------------------------


def _conjugate(person: Person, first: str, third: str, plural: str) -> str:
    return first if person == "1s" else third if person == "3s" else plural


def _preterite(person: Person, singular: str) -> str:
    """Return the preterite form: "war, waren; hatte, hatten". First and third person singular are equal."""
    if person in ("1s", "3s"):
        return singular
    return singular + ("n" if singular.endswith("e") else "en")


def _german_verb(clause: Clause) -> tuple[str, str, str]:
    """Return the finite verb, the end of the bracket, and the finite verb as last word of a subordinate clause."""
    verb, modal, person = clause.verb, clause.modal, clause.subject.person
    past = clause.tense == "past"
    if modal is not None and not modal.gern:
        finite = (
            _preterite(person, modal.de_past)
            if past
            else _conjugate(person, modal.de_first, modal.de_third, modal.de_plural)
        )
        return finite, verb.infinitive, finite
    if past and not verb.preterite:
        finite = _perfect_auxiliary(verb, person)
        return finite, verb.participle, finite
    if past:
        finite = _preterite(person, verb.preterite)
    else:
        finite = _conjugate(person, verb.de_first, verb.de_third, verb.de_plural)
    return finite, verb.prefix, verb.prefix + finite


def _perfect_auxiliary(verb: Verb, person: Person) -> str:
    if verb.perfect_with_sein:
        return _conjugate(person, "bin", "ist", "sind")
    return _conjugate(person, "habe", "hat", "haben")


def _gern(clause: Clause) -> bool:
    return clause.modal is not None and clause.modal.gern


def _is_indefinite(nominal: Nominal | Text | None) -> bool:
    return isinstance(nominal, NounPhrase) and not nominal.determiner.definite and nominal.possessor is None


def _takes_kein(clause: Clause) -> bool:
    indefinite = _is_indefinite(clause.accusative) or _is_indefinite(clause.predicate)
    return clause.negated and indefinite and not _gern(clause)


def _german_object(nominal: Nominal | None, case: Literal["acc", "dat"], determiner: Determiner | None = None) -> str:
    if nominal is None:
        return ""
    if determiner is not None and isinstance(nominal, NounPhrase):
        nominal = nominal._replace(determiner=determiner)
    return nominal.de(case)


def _german_predicate(clause: Clause) -> str:
    """A profession takes no article ("ist Lehrer") unless it is described ("ist ein guter Lehrer") or denied."""
    predicate = clause.predicate
    if predicate is None or isinstance(predicate, Text):
        return predicate.de if predicate else ""
    if _takes_kein(clause):
        return predicate._replace(determiner=NO).de("nom")
    if predicate.determiner is A and predicate.noun in PROFESSIONS and predicate.adjective is None:
        return predicate._replace(determiner=BARE).de("nom")
    return predicate.de("nom")


def _middle_field(clause: Clause, *, subject: bool, front: str = "") -> str:
    kein = _takes_kein(clause)
    who = clause.subject.de("nom") if subject else ""
    direct = _german_object(clause.accusative, "acc", NO if kein else None)
    indirect = _german_object(clause.dative, "dat")
    indefinite = _is_indefinite(clause.accusative)
    reflexive = REFLEXIVES[clause.subject.person] if clause.verb.reflexive else ""
    subject_is_pronoun = isinstance(clause.subject, Pronoun)
    accusative_is_pronoun = isinstance(clause.accusative, Pronoun)
    dative_is_pronoun = isinstance(clause.dative, Pronoun)
    return _join(
        who if subject_is_pronoun else "",
        reflexive,
        "" if subject_is_pronoun else who,
        direct if accusative_is_pronoun else "",
        indirect if dative_is_pronoun else "",
        clause.time.de if clause.time and front != "time" else "",
        "" if dative_is_pronoun else indirect,
        "" if accusative_is_pronoun or indefinite else direct,
        "nicht" if clause.negated and not kein else "",
        "gern" if _gern(clause) else "",
        clause.manner.de if clause.manner else "",
        clause.companion.de,
        clause.place.de if front != "place" else "",
        direct if indefinite else "",
        clause.complement.de,
        _german_predicate(clause),
    )


# --- both languages ----------------------------------------------------------------------------------------------


def main_clause(clause: Clause) -> Text:
    """Put the verb second: "Heute liest der Lehrer ein Buch"."""
    finite, close, _ = _german_verb(clause)
    if clause.front == "time" and clause.time:
        opening = clause.time.de
    else:
        opening = clause.place.de if clause.front == "place" else clause.subject.de("nom")
    middle = _middle_field(clause, subject=clause.front != "subject", front=clause.front)
    return Text(english(clause), _join(opening, finite, middle, close), clause.pairs)


def question(clause: Clause) -> Text:
    """Put the verb first in both languages. A question word may precede it."""
    return Text(english(clause, question=True), _verb_first(clause), clause.pairs)


def after_subordinate(clause: Clause) -> Text:
    """Put the German verb first, because a subordinate clause precedes: "Wenn es regnet, bleibt er hier"."""
    return Text(english(clause), _verb_first(clause), clause.pairs)


def _verb_first(clause: Clause) -> str:
    finite, close, _ = _german_verb(clause)
    return _join(finite, _middle_field(clause, subject=True), close)


def subordinate(clause: Clause) -> Text:
    """Put the verb last, after a conjunction or relative pronoun: "weil der Lehrer heute ein Buch gelesen hat"."""
    finite, close, last = _german_verb(clause)
    verb = last if close == clause.verb.prefix else _join(close, finite)
    return Text(english(clause), _join(_middle_field(clause, subject=True), verb), clause.pairs)


def purpose(clause: Clause) -> Text:
    """Return the infinitive with zu, which follows a separable prefix: "um Brot zu kaufen", "um aufzustehen"."""
    verb = clause.verb
    infinitive = f"{verb.prefix}zu{verb.de}" if verb.prefix else f"zu {verb.de}"
    german = _join("um", _middle_field(clause, subject=False), infinitive)
    return Text(_join("in order to", verb.en, _english_tail(clause)), german, clause.pairs)


def coordinate(first: Clause, second: Clause) -> Text:
    """Join two predicates of one subject. A shared auxiliary of the perfect is named once."""
    opening = main_clause(first)
    finite, close, _ = _german_verb(second)
    both_perfect = not (first.verb.preterite or second.verb.preterite) and first.tense == second.tense == "past"
    if both_perfect and first.verb.perfect_with_sein == second.verb.perfect_with_sein:
        finite = ""
    german = _join("und", finite, _middle_field(second, subject=False), close)
    pairs = opening.pairs + second.pairs
    return Text(f"{opening.en} and {english(second, subject=False)}", f"{opening.de} {german}", pairs)
