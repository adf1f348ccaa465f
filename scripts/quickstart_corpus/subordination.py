"""Sentences of two or three clauses: reasons, conditions, object clauses, purposes and chains of events."""

from . import lexicon, verbs
from .actions import action, deed, motion, purpose_of
from .clause import Clause, Tense, after_subordinate, coordinate, main_clause, purpose, subordinate
from .dice import Dice, weighted
from .morphology import EMPTY, Nominal, NounPhrase, Text, sequence
from .phrases import antecedent, human
from .questions import occasion, whereabouts
from .states import predicative, state, weather
from .tenses import add_time, can_be_negated, remove_time

# --- adverbial clauses -------------------------------------------------------------------------------------------

_CONJUNCTIONS = weighted((("because", "weil"), 3), (("although", "obwohl"), 1))


def _circumstance(dice: Dice, subject: Nominal, tense: Tense) -> Clause:
    """Return a reason or condition: a mood, a duty or wish, or the weather."""
    if dice.chance(0.45):
        if isinstance(subject, NounPhrase):
            subject = subject._replace(adjective=None)
        mood = predicative(subject, dice.pick(lexicon.STATES))
        return Clause(subject, verbs.BE, tense, negated=dice.chance(0.12), predicate=mood)
    if dice.chance(0.35):
        return weather(dice, tense)
    modal = dice.pick((verbs.HAVE_TO, verbs.WANT_TO, verbs.CAN))
    need = deed(dice, subject)._replace(modal=modal, tense=tense)
    return need._replace(negated=modal is verbs.CAN and can_be_negated(need))


def reason(dice: Dice) -> Text:
    """ "..., weil er müde ist"; or first: "Weil der Mann müde ist, schläft er"."""
    (en, de), (subject, pronoun) = dice.pick(_CONJUNCTIONS), antecedent(dice)
    subordinate_first = dice.chance(0.35)
    main = add_time(dice, action(dice, pronoun if subordinate_first else subject), embedded=True)
    tense: Tense = "past" if main.tense == "past" else "present"
    why = subordinate(_circumstance(dice, subject if subordinate_first else pronoun, tense))
    if subordinate_first:
        return sequence(f"{en} {{}}, {{}}", f"{de} {{}}, {{}}", why, after_subordinate(main))
    return sequence(f"{{}} {en} {{}}", f"{{}}, {de} {{}}", main_clause(main), why)


def condition(dice: Dice) -> Text:
    """ "Wenn es regnet, bleibt ...": German has the present in both clauses or werden in the main clause."""
    subject, pronoun = antecedent(dice)
    first = dice.chance(0.6)
    main = deed(dice, pronoun if first else subject)._replace(modal=dice.pick(_CONSEQUENCES))
    when = _circumstance(dice, subject if first else pronoun, "present")
    if when.verb in (verbs.RAIN, verbs.SNOW):
        when = when._replace(tense="present")  # "if it rains"
    if first:
        return sequence("if {}, {}", "wenn {}, {}", subordinate(when), after_subordinate(main))
    return sequence("{} if {}", "{}, wenn {}", main_clause(main), subordinate(when))


_CONSEQUENCES = weighted((verbs.WILL, 4), (verbs.CAN, 2), (verbs.MAY, 1), (verbs.HAVE_TO, 2), (verbs.SHOULD, 1))

# --- object clauses ----------------------------------------------------------------------------------------------


def _object_clause(dice: Dice) -> Clause:
    if dice.chance(0.35):
        return state(dice)
    return add_time(dice, action(dice, human(dice)), embedded=True)


def _matrix(dice: Dice, *choices: verbs.Verb) -> Clause:
    verb = dice.pick(choices)
    return Clause(human(dice, pronouns=0.35), verb, negated=verb != verbs.HOPE and dice.chance(0.12))


_STATEMENTS = (verbs.KNOW, verbs.BELIEVE, verbs.SAY, verbs.HOPE)


def that(dice: Dice) -> Text:
    matrix = main_clause(_matrix(dice, *_STATEMENTS))
    return sequence("{} that {}", "{}, dass {}", matrix, subordinate(_object_clause(dice)))


def that_because(dice: Dice) -> Text:
    """ "Anna sagt, dass der Junge nicht kommt, weil er krank ist"."""
    subject, pronoun = antecedent(dice)
    content = add_time(dice, action(dice, subject), embedded=True)
    why = _circumstance(dice, pronoun, "past" if content.tense == "past" else "present")
    parts = (main_clause(_matrix(dice, *_STATEMENTS)), subordinate(content), subordinate(why))
    return sequence("{} that {} because {}", "{}, dass {}, weil {}", *parts)


def whether(dice: Dice) -> Text:
    """Return an indirect question, with "ob" or a question word."""
    if dice.chance(0.5):
        matrix = _matrix(dice, verbs.ASK)._replace(negated=False)
    else:
        matrix = _matrix(dice, verbs.KNOW)._replace(negated=True)
    if dice.chance(0.55):
        content = _object_clause(dice)._replace(negated=False)
        return sequence("{} whether {}", "{}, ob {}", main_clause(matrix), subordinate(content))
    word, asked = whereabouts(dice) if dice.chance(0.5) else occasion(dice)
    return sequence("{} {} {}", "{}, {} {}", main_clause(matrix), word, subordinate(remove_time(asked)))


# --- purposes and chains -----------------------------------------------------------------------------------------


def intention(dice: Dice) -> Text:
    """ "..., um Brot zu kaufen"."""
    subject = human(dice)
    going = motion(dice, subject)._replace(companion=EMPTY, manner=None)
    if dice.chance(0.35):
        going = going._replace(modal=dice.pick((verbs.WILL, verbs.WANT_TO, verbs.HAVE_TO)))
    else:
        going = going._replace(tense="past" if dice.chance(0.6) else "progressive")
    return sequence("{} {}", "{}, {}", main_clause(going), purpose(purpose_of(dice, subject)))


def chain(dice: Dice) -> Text:
    """Return two actions of one person, past or regular."""
    subject = human(dice)
    past = dice.chance(0.7)
    first = second = deed(dice, subject)
    while second.verb == first.verb:
        second = deed(dice, subject)
    if past:
        return coordinate(first._replace(tense="past"), second._replace(tense="past"))
    time = dice.pick(lexicon.REGULAR)
    return coordinate(first._replace(time=time, front="time"), second)


def meanwhile(dice: Dice) -> Text:
    """Return simultaneous actions of two persons, joined by "und" without a comma."""
    first, second = deed(dice, human(dice)), deed(dice, human(dice, pronouns=0))
    while second.verb == first.verb:
        second = deed(dice, second.subject)
    parts = (main_clause(clause._replace(tense="progressive")) for clause in (first, second))
    return sequence("{}, and {}", "{} und {}", *parts)


SUBORDINATION = weighted(
    (reason, 8), (condition, 5), (that, 7), (that_because, 2), (whether, 5), (intention, 4), (chain, 4), (meanwhile, 3),
)  # fmt: skip
