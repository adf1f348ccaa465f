"""The sentence patterns of the quickstart language, with their weights.

In this package, a function that draws a phrase, clause or sentence at random is named after what it returns.
"""

from . import lexicon, verbs
from .actions import action, animal_action, transport
from .anaphora import ANAPHORA
from .clause import Clause, main_clause
from .dice import Dice, weighted
from .morphology import COUNTS, NO, A, NounPhrase, Text, sequence
from .phrases import adjective_for, human
from .places import inside, location
from .questions import QUESTIONS
from .states import predicative, state, thing, weather
from .subordination import SUBORDINATION
from .tenses import add_time, past_time


def event(dice: Dice) -> Text:
    """Return an action of a person, with the subject, the time or the place in front."""
    return main_clause(add_time(dice, action(dice, human(dice))))


def animal_event(dice: Dice) -> Text:
    return main_clause(add_time(dice, animal_action(dice)))


def arrival(dice: Dice) -> Text:
    """ "The train arrives at three o'clock": "Der Zug kommt um drei Uhr an"."""
    clause = add_time(dice, transport(dice))
    if not clause.time and not clause.negated and clause.modal is None and dice.chance(0.6):
        en, de = dice.pick(lexicon.HOURS)
        clause = clause._replace(tense="present", time=lexicon.Adverb(f"at {en} o'clock", f"um {de} Uhr"))
    return main_clause(clause)


def description(dice: Dice) -> Text:
    return main_clause(state(dice))


def existence(dice: Dice) -> Text:
    """ "There is a cat in the garden": "Es gibt eine Katze im Garten". German takes the accusative."""
    things, sites = (lexicon.nouns(words) for words in dice.pick(_EXISTENCE))
    noun = dice.pick(things)
    adjective = adjective_for(dice, noun) if dice.chance(0.35) else None
    where = inside(location(dice, dice.pick(sites)))
    if dice.chance(0.4):
        phrase, copula = NounPhrase(noun, dice.pick(COUNTS), True, adjective), ("are", "were")
    else:
        phrase, copula = NounPhrase(noun, NO if dice.chance(0.25) else A, False, adjective), ("is", "was")
    past = dice.chance(0.2)
    be, gibt = copula[past], "gab" if past else "gibt"
    what = Text(phrase.en, phrase.de("acc"), phrase.pairs)
    if dice.chance(0.4):
        return sequence(f"{{}} there {be} {{}}", f"{{}} {gibt} es {{}}", where, what)
    return sequence(f"there {be} {{}} {{}}", f"es {gibt} {{}} {{}}", what, where)


def correction(dice: Dice) -> Text:
    """ "The car is not red, but blue": "Das Auto ist nicht rot, sondern blau"."""
    while True:
        subject = thing(dice)._replace(adjective=None)
        first = adjective_for(dice, subject.noun)
        others = tuple(a for a in lexicon.ADJECTIVES_FOR[subject.noun.kind] if a.scale == first.scale and a != first)
        if others:
            break
    wrong, right = predicative(subject, first), predicative(subject, dice.pick(others))
    contrast = sequence("{}, but {}", "{}, sondern {}", wrong, right)
    return main_clause(Clause(subject, verbs.BE, negated=True, predicate=contrast))


def weather_report(dice: Dice) -> Text:
    if dice.chance(0.5):
        return main_clause(weather(dice, "past")._replace(time=past_time(dice, dice.chance(0.5))))
    clause = weather(dice, "present")
    return main_clause(clause._replace(time=dice.pick(lexicon.NOW)))


_EXISTENCE = (  # things and sites
    ("table chair lamp bed picture window door dog cat computer", "kitchen room house school museum hospital"),
    ("church school museum hospital market park lake garden horse bus car", "city village"),
    ("bird horse dog cat house lake man woman child cow flower", "garden park forest village"),
)
_STATEMENTS = weighted(
    (event, 50), (animal_event, 6), (arrival, 3), (description, 18), (existence, 3), (correction, 2),
    (weather_report, 1),
)  # fmt: skip
_PATTERNS = weighted((_STATEMENTS, 58), (SUBORDINATION, 15), (ANAPHORA, 12))


def sentence(dice: Dice) -> Text:
    """Return a random sentence with a capital letter and a final mark."""
    if dice.chance(0.17):
        return _punctuate(dice.pick(QUESTIONS)(dice), "?")
    return _punctuate(dice.pick(dice.pick(_PATTERNS))(dice), ".")


def _punctuate(text: Text, mark: str) -> Text:
    en, de = text.en, text.de.removesuffix(",")  # the mark replaces the comma after a relative clause
    return Text(en[0].upper() + en[1:] + mark, de[0].upper() + de[1:] + mark, text.pairs)
