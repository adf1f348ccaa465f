"""Random clauses about states, with sein, haben, gehören and the verbs of position."""

from . import lexicon, places, valency, verbs
from .clause import Clause, Tense
from .dice import Dice, weighted
from .lexicon import Adjective
from .morphology import COUNTS, IT, POSSESSIVES, THE, THIS, A, Nominal, NounPhrase, Pronoun, Text, gender, is_human
from .phrases import adjective_for, human, human_object, noun_phrase
from .tenses import past_time


def state(dice: Dice) -> Clause:
    return dice.pick(_STATES)(dice)


def thing(dice: Dice) -> NounPhrase:
    """Return a definite thing or animal as a subject."""
    return noun_phrase(dice, dice.pick(_THINGS), adjective=0.12, definite=True)


def predicative(subject: Nominal, adjective: Adjective) -> Text:
    """Return the uninflected adjective as a predicate."""
    pairs = ((adjective.en, subject.noun.en),) if isinstance(subject, NounPhrase) else ()
    return Text(adjective.en, adjective.de, pairs)


def quality(dice: Dice) -> Clause:
    """ "The cup is old", "Anna was tired yesterday"."""
    subject = human(dice) if dice.chance(0.4) else thing(dice)
    if not isinstance(subject, NounPhrase):
        return in_mood(dice, subject)
    adjective = adjective_for(dice, subject.noun)
    if adjective in lexicon.STATES:
        return in_mood(dice, subject)
    if subject.adjective and subject.adjective.scale == adjective.scale:
        subject = subject._replace(adjective=None)
    tense = "past" if dice.chance(0.25) else "present"
    return Clause(subject, verbs.BE, tense, negated=dice.chance(0.15), predicate=predicative(subject, adjective))


def in_mood(dice: Dice, subject: Nominal) -> Clause:
    if isinstance(subject, NounPhrase):
        subject = subject._replace(adjective=None)
    clause = Clause(subject, verbs.BE, predicate=predicative(subject, dice.pick(lexicon.STATES)))
    clause = clause._replace(negated=dice.chance(0.15))
    if dice.chance(0.3):
        return clause._replace(tense="past", time=past_time(dice, True) if dice.chance(0.4) else None)
    if dice.chance(0.25) and not clause.negated:
        return clause._replace(time=dice.pick(lexicon.FREQUENCY))
    return clause._replace(time=dice.pick(lexicon.NOW)) if dice.chance(0.3) else clause


def standing(dice: Dice) -> Clause:
    """ "The cup is standing on the table": the two-way preposition takes the dative."""
    if dice.chance(0.15):
        return Clause(human(dice), verbs.SIT, "progressive", complement=places.near(dice, lexicon.STATIC, places.SEATS))
    if dice.chance(0.15):
        animal = noun_phrase(dice, dice.pick(lexicon.nouns("dog bird cat mouse")), definite=True)
        return Clause(animal, verbs.SIT, "progressive", complement=places.near(dice, lexicon.STATIC, places.SPOTS))
    posture = dice.pick(valency.POSTURES)
    subject = noun_phrase(dice, dice.pick(posture.things), definite=True)
    if posture is valency.HANGING:
        where = places.on_wall(lexicon.ON_WALL)
    else:
        where = places.near(dice, lexicon.STATIC, places.spots_for(subject.noun))
    if dice.chance(0.25):
        return Clause(subject, verbs.BE, "past" if dice.chance(0.4) else "present", complement=where)
    return Clause(subject, posture.be_there, "progressive", negated=dice.chance(0.1), complement=where)


def having(dice: Dice) -> Clause:
    subject = human(dice)
    young = isinstance(subject, NounPhrase) and subject.noun.kind == "child"
    noun = dice.pick(_POSSESSIONS if young else _POSSESSIONS + _OFFSPRING)
    if dice.chance(0.5):
        owned = NounPhrase(noun, A, adjective=adjective_for(dice, noun) if dice.chance(0.4) else None)
        negated = dice.chance(0.3)
    else:
        counts = COUNTS[:4] if is_human(noun) else COUNTS
        owned = NounPhrase(noun, dice.pick(counts), True, adjective_for(dice, noun) if dice.chance(0.4) else None)
        negated = False
    return Clause(subject, verbs.HAVE, "past" if dice.chance(0.25) else "present", negated=negated, accusative=owned)


def belonging(dice: Dice) -> Clause:
    subject = noun_phrase(dice, dice.pick(_BELONGINGS), definite=True)
    subject = subject._replace(determiner=THIS if dice.chance(0.3) else THE, possessor=None)
    return Clause(subject, verbs.BELONG, dative=human_object(dice, subject))


def profession(dice: Dice) -> Clause:
    """ "My brother is a doctor": German uses no article."""
    subject = human(dice, pronouns=0.15)
    male = not isinstance(subject, Pronoun) and subject.person == "3s" and gender(subject) == "m"
    if not male or (isinstance(subject, NounPhrase) and subject.noun in lexicon.PROFESSIONS):
        subject = NounPhrase(dice.pick(_MALE_KIN), dice.pick(POSSESSIVES))
    noun = dice.pick(lexicon.PROFESSIONS)
    predicate = NounPhrase(noun, A, adjective=adjective_for(dice, noun) if dice.chance(0.4) else None)
    tense = "past" if dice.chance(0.2) else "present"
    return Clause(subject, verbs.BE, tense, negated=dice.chance(0.2), predicate=predicate)


def age(dice: Dice) -> Clause:
    subject = human(dice, pronouns=0.5)
    if isinstance(subject, NounPhrase):
        subject = noun_phrase(dice, dice.pick(_AGED), plural=0.15, adjective=0, definite=True)
    en, de = dice.pick(lexicon.NUMBERS)
    return Clause(subject, verbs.BE, predicate=Text(f"{en} years old", f"{de} Jahre alt"))


def comparison(dice: Dice) -> Clause:
    """ "bigger than the cat": als with the nominative; "as big as the cat": so ... wie."""
    first = dice.pick(_COMPARABLE)
    others = tuple(noun for noun in _COMPARABLE if noun.kind == first.kind and noun != first)
    second = dice.pick(others)
    adjective = dice.pick(tuple(a for a in lexicon.ADJECTIVES_FOR[first.kind] if a.de_comparative))
    subject = noun_phrase(dice, first, adjective=0, definite=True)
    standard = noun_phrase(dice, second, adjective=0, definite=True, plural=0.1)
    than = Text(standard.en, standard.de("nom"))
    if dice.chance(0.3):
        en, de = f"as {adjective.en} as {than.en}", f"so {adjective.de} wie {than.de}"
    else:
        en, de = f"{adjective.en_comparative} than {than.en}", f"{adjective.de_comparative} als {than.de}"
    pairs = ((adjective.en, first.en), (adjective.en, second.en))
    return Clause(subject, verbs.BE, "past" if dice.chance(0.15) else "present", predicate=Text(en, de, pairs))


def weather(dice: Dice, tense: Tense) -> Clause:
    """ "It is raining", "the weather was bad": without a time adverbial."""
    if dice.chance(0.6):
        verb = verbs.RAIN if dice.chance(0.6) else verbs.SNOW
        return Clause(IT["n"], verb, "progressive" if tense == "present" else tense)
    subject = NounPhrase(lexicon.NOUNS["weather"], THE)
    adjective = adjective_for(dice, subject.noun)
    return Clause(subject, verbs.BE, tense, predicate=predicative(subject, adjective))


_THINGS = tuple(n for n in lexicon.NOUNS.values() if not is_human(n) and n.kind != "weather")
_POSSESSIONS = lexicon.nouns(
    "dog cat bird horse cow brother sister uncle aunt friend car bicycle house garden computer radio "
    "key hat coat jacket suitcase book question table bed ball"
)
_OFFSPRING = lexicon.nouns("son daughter child")
_BELONGINGS = lexicon.nouns(
    "dog cat horse cow car bicycle ship house garden computer radio key hat coat jacket shirt dress suitcase book "
    "bottle glass cup ball picture lamp"
)
_AGED = lexicon.nouns("boy girl child son daughter brother sister friend student dog cat horse house car ship")
_MALE_KIN = lexicon.nouns("father son brother uncle grandfather friend neighbor")
_COMPARABLE = tuple(n for n in (*_THINGS, *lexicon.PEOPLE) if n.kind not in ("dish", "bread", "drink"))
_STATES = weighted(
    (quality, 40), (standing, 18), (having, 14), (belonging, 8), (profession, 7), (age, 5), (comparison, 10),
)  # fmt: skip
