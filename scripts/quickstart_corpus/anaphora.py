"""Sentences with pronouns that agree with an antecedent: personal pronouns and relative pronouns.

A pronoun has the gender and number of its German antecedent, and the case of its own clause.
"""

from . import lexicon, valency, verbs
from .actions import action
from .clause import Clause, Tense, coordinate, main_clause, subordinate
from .dice import Dice, weighted
from .lexicon import Case, Noun
from .morphology import (
    COUNTS,
    THE,
    A,
    NounPhrase,
    Pronoun,
    Text,
    is_human,
    pronoun_for,
    pronoun_for_thing,
    relative_pronoun,
    sequence,
)
from .phrases import adjective_for, antecedent, human, human_object, noun_phrase, person
from .states import predicative, thing
from .tenses import add_time

_GIFTS = lexicon.nouns("ball book flower picture gift hat apple glass cup bottle")
_PETS = lexicon.nouns("dog cat bird horse cow")


def _person_with_pronoun(dice: Dice) -> tuple[NounPhrase, Pronoun]:
    while True:
        phrase = person(dice, adjective=0)
        pronoun = pronoun_for(phrase)
        if pronoun:
            return phrase, pronoun


def described(dice: Dice) -> Text:
    """ "The cup is old, but it is beautiful": "Die Tasse ist alt, aber sie ist schön"."""
    subject = thing(dice)._replace(adjective=None)
    pronoun = pronoun_for_thing(subject)
    if dice.chance(0.15):
        subject, pronoun = _person_with_pronoun(dice)
    first = adjective_for(dice, subject.noun)
    second = dice.pick(tuple(a for a in lexicon.ADJECTIVES_FOR[subject.noun.kind] if a.scale != first.scale))
    tense: Tense = "past" if dice.chance(0.2) else "present"
    claim = Clause(subject, verbs.BE, tense, predicate=predicative(subject, first))
    rest = Clause(pronoun, verbs.BE, tense, predicate=predicative(subject, second))
    if dice.chance(0.65):
        claim = claim._replace(negated=dice.chance(0.15))
        return sequence("{}, but {}", "{}, aber {}", main_clause(claim), main_clause(rest))
    return sequence("{}, and {}", "{} und {}", main_clause(claim), main_clause(rest))


def acquired(dice: Dice) -> Text:
    """ "..., weil er ihn braucht", "..., weil er billig ist": the pronoun is the object or the subject."""
    subject, pronoun = antecedent(dice)
    entry = dice.pick(_ACQUIRING)
    phrase = noun_phrase(dice, dice.pick(entry.objects), owner=pronoun)
    it = pronoun_for_thing(phrase)
    main = Clause(subject, entry.verb, dice.pick(("past", "past", "progressive")), accusative=phrase)
    if dice.chance(0.5):
        why = Clause(pronoun, verbs.NEED if dice.chance(0.4) else verbs.LIKE, accusative=it)
    else:
        tense: Tense = "past" if main.tense == "past" else "present"
        scale = phrase.adjective.scale if phrase.adjective else ""
        fitting = tuple(a for a in lexicon.ADJECTIVES_FOR[phrase.noun.kind] if a.scale != scale)
        why = Clause(it, verbs.BE, tense, predicate=predicative(phrase, dice.pick(fitting)))
    return sequence("{} because {}", "{}, weil {}", main_clause(main), subordinate(why))


def searched(dice: Dice) -> Text:
    """ "... sucht den Schlüssel, aber sie findet ihn nicht"."""
    subject, pronoun = antecedent(dice)
    phrase = noun_phrase(dice, dice.pick(_LOST), owner=pronoun)
    it = pronoun_for_thing(phrase)
    if dice.chance(0.3):
        past = Clause(subject, verbs.LOOK_FOR, "past", accusative=phrase)
        found = Clause(pronoun, verbs.FIND, "past", negated=True, accusative=it)
        return sequence("{}, but {}", "{}, aber {}", main_clause(past), main_clause(found))
    main = Clause(subject, verbs.LOOK_FOR, "progressive", accusative=phrase)
    failing = Clause(pronoun, verbs.FIND, negated=True, modal=verbs.CAN, accusative=it)
    return sequence("{}, but {}", "{}, aber {}", main_clause(main), main_clause(failing))


def kept(dice: Dice) -> Text:
    """ "The woman has a dog, and she loves it": "... einen Hund und sie liebt ihn"."""
    subject, pronoun = antecedent(dice)
    noun = dice.pick(_PETS)
    adjective = adjective_for(dice, noun) if dice.chance(0.4) else None
    several = dice.chance(0.3)
    pet = NounPhrase(noun, dice.pick(COUNTS) if several else A, several, adjective)
    has = Clause(subject, verbs.HAVE, accusative=pet)
    loves = Clause(pronoun, dice.pick((verbs.LOVE, verbs.LIKE)), accusative=pronoun_for_thing(pet))
    return sequence("{}, and {}", "{} und {}", main_clause(has), main_clause(loves))


def visited(dice: Dice) -> Text:
    """ "... besucht und ihm geholfen": the pronoun is in the dative or the accusative."""
    subject = human(dice)
    guest, pronoun = _person_with_pronoun(dice)
    first = Clause(subject, dice.pick(_MEETING), "past", accusative=guest)
    if dice.chance(0.6):
        second = Clause(subject, dice.pick(valency.DATIVE), "past", dative=pronoun)
    elif dice.chance(0.6):
        entry = dice.pick(valency.DITRANSITIVE)
        gift = noun_phrase(dice, dice.pick(entry.objects), owner=subject)
        second = Clause(subject, entry.verb, "past", dative=pronoun, accusative=gift)
    else:
        others = tuple(verb for verb in _MEETING if verb != first.verb)
        second = Clause(subject, dice.pick(others), "past", accusative=pronoun)
    return coordinate(first, second)


def presented(dice: Dice) -> Text:
    """ "... gekauft und ihn dem Kind gegeben": the accusative pronoun precedes the dative noun."""
    subject = human(dice)
    gift = noun_phrase(dice, dice.pick(_GIFTS), owner=subject)
    first = Clause(subject, dice.pick((verbs.BUY, verbs.FIND)), "past", accusative=gift)
    receiver = human_object(dice, subject)
    second = Clause(subject, verbs.GIVE, "past", dative=receiver, accusative=pronoun_for_thing(gift))
    return coordinate(first, second)


# --- relative clauses --------------------------------------------------------------------------------------------


def _head(dice: Dice, noun: Noun) -> NounPhrase:
    plural, described = dice.chance(0.2), dice.chance(0.12)
    return NounPhrase(noun, THE, plural and bool(noun.en_plural), adjective_for(dice, noun) if described else None)


def _with_subject_relative(dice: Dice, head: NounPhrase) -> NounPhrase:
    """ "the man who is reading a book"."""
    acting = add_time(dice, action(dice, relative_pronoun(head)), embedded=True)
    return head._replace(relative=subordinate(acting))


def _with_object_relative(dice: Dice, head: NounPhrase, verb: verbs.Verb, case: Case) -> NounPhrase:
    """ "the book that the girl is reading", "the man whom the boy is helping"."""
    pronoun = relative_pronoun(head)
    rest = subordinate(add_time(dice, Clause(human(dice), verb), embedded=True))
    pairs = (*rest.pairs, (verb.lemma, head.noun.en))
    return head._replace(relative=Text(f"{pronoun.en_object} {rest.en}", f"{pronoun.de(case)} {rest.de}", pairs))


def relative_subject(dice: Dice) -> Text:
    """Return a subject with a relative clause: "Der Mann, der ein Buch liest, ist müde"."""
    if dice.chance(0.5):
        head = _with_subject_relative(dice, _head(dice, dice.pick(lexicon.PEOPLE)))
    elif dice.chance(0.3):
        head = _with_object_relative(dice, _head(dice, dice.pick(lexicon.PEOPLE)), dice.pick(valency.DATIVE), "dat")
    else:
        entry = dice.pick(valency.TRANSITIVE)
        head = _with_object_relative(dice, _head(dice, dice.pick(entry.objects)), entry.verb, "acc")
    scale = head.adjective.scale if head.adjective else ""
    fitting = tuple(a for a in lexicon.ADJECTIVES_FOR[head.noun.kind] if a.scale != scale)
    tense: Tense = "past" if dice.chance(0.15) else "present"
    return main_clause(Clause(head, verbs.BE, tense, predicate=predicative(head, dice.pick(fitting))))


def relative_object(dice: Dice) -> Text:
    """Return an object with a relative clause: "Ich sehe den Mann, der im Garten arbeitet"."""
    head = _with_subject_relative(dice, _head(dice, dice.pick(lexicon.PEOPLE)))
    verb = dice.pick((verbs.SEE, verbs.VISIT, verbs.LIKE, verbs.LOOK_FOR))
    tense: Tense = "present" if verb.stative else "progressive"
    return main_clause(Clause(human(dice), verb, tense, accusative=head))


_ACQUIRING = tuple(entry for entry in valency.TRANSITIVE if entry.verb in (verbs.BUY, verbs.TAKE))
_SOUGHT = next(entry.objects for entry in valency.TRANSITIVE if entry.verb == verbs.LOOK_FOR)
_LOST = tuple(noun for noun in _SOUGHT if not is_human(noun))
_MEETING = (verbs.VISIT, verbs.CALL, verbs.INVITE)
ANAPHORA = weighted(
    (described, 8), (acquired, 8), (searched, 4), (kept, 3), (visited, 4), (presented, 3), (relative_subject, 8),
    (relative_object, 3),
)  # fmt: skip
