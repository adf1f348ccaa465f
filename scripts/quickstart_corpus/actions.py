"""Random clauses about actions of people and animals, by the verb's valency. `tenses.py` adds the tense."""

from collections.abc import Callable

from . import lexicon, places, valency, verbs
from .clause import Clause
from .dice import Dice, weighted
from .morphology import BARE, EMPTY, THE, Nominal, NounPhrase, Text, is_human, prepositional
from .phrases import human_object, noun_phrase


def action(dice: Dice, subject: Nominal) -> Clause:
    return dice.pick(_ACTIONS)(dice, subject)


def transitive(dice: Dice, subject: Nominal) -> Clause:
    entry = dice.pick(_TRANSITIVE)
    noun = dice.pick(entry.objects)
    if is_human(noun):
        return Clause(subject, entry.verb, accusative=human_object(dice, subject, (noun,)))
    clause = Clause(subject, entry.verb, accusative=noun_phrase(dice, noun, owner=subject))
    if entry.verb == verbs.BUY and dice.chance(0.2):
        return clause._replace(complement=prepositional(lexicon.FOR, human_object(dice, subject)))
    if entry.places and dice.chance(0.3):
        return clause._replace(place=places.place(dice, entry.places, subject))
    return clause


def dative(dice: Dice, subject: Nominal) -> Clause:
    return Clause(subject, dice.pick(valency.DATIVE), dative=human_object(dice, subject))


def ditransitive(dice: Dice, subject: Nominal) -> Clause:
    entry = dice.pick(valency.DITRANSITIVE)
    gift = noun_phrase(dice, dice.pick(entry.objects), owner=subject)
    return Clause(subject, entry.verb, dative=human_object(dice, subject), accusative=gift)


def with_preposition(dice: Dice, subject: Nominal) -> Clause:
    entry = dice.pick(valency.PREPOSITIONAL)
    noun = dice.pick(entry.objects)
    partner = human_object(dice, subject, (noun,)) if is_human(noun) else noun_phrase(dice, noun, owner=subject)
    return Clause(subject, entry.verb, complement=prepositional(entry.preposition, partner))


def receiving(dice: Dice, subject: Nominal) -> Clause:
    gift = noun_phrase(dice, dice.pick(lexicon.nouns("letter gift book flower picture")))
    giver = prepositional(lexicon.FROM, human_object(dice, subject))
    return Clause(subject, verbs.GET_FROM, accusative=gift, complement=giver)


def placing(dice: Dice, subject: Nominal) -> Clause:
    """ "She puts the cup on the table": the two-way preposition takes the accusative."""
    posture = dice.pick(valency.POSTURES)
    thing = noun_phrase(dice, dice.pick(posture.things), owner=subject)
    if posture is valency.HANGING:
        where = places.on_wall(lexicon.ONTO_WALL)
    else:
        where = places.near(dice, lexicon.DIRECTED, places.spots_for(thing.noun))
    return Clause(subject, posture.put_there, accusative=thing, complement=where)


def activity(dice: Dice, subject: Nominal) -> Clause:
    entry = dice.pick(valency.ACTIVITIES)
    clause = Clause(subject, entry.verb)
    if entry.places and dice.chance(0.4):
        clause = clause._replace(place=places.place(dice, entry.places, subject))
    if dice.chance(0.35):
        return clause._replace(manner=dice.pick(entry.manners))
    return clause if entry.verb == verbs.SLEEP else clause._replace(companion=_companion(dice, subject))


def _companion(dice: Dice, subject: Nominal) -> Text:
    """Return "with" or "without" somebody, or mostly nothing."""
    if not dice.chance(0.15):
        return EMPTY
    preposition = lexicon.WITH if dice.chance(0.6) else lexicon.WITHOUT
    if dice.chance(0.3):
        return prepositional(preposition, noun_phrase(dice, lexicon.NOUNS["dog"], owner=subject, definite=True))
    return prepositional(preposition, human_object(dice, subject))


def separable(dice: Dice, subject: Nominal) -> Clause:
    return Clause(subject, dice.pick(valency.SEPARABLE))


def reflexive(dice: Dice, subject: Nominal) -> Clause:
    if dice.chance(0.4):
        seat = noun_phrase(dice, lexicon.NOUNS["chair" if dice.chance(0.6) else "bed"], owner=subject, plural=0)
        return Clause(subject, verbs.SIT_DOWN, complement=prepositional(lexicon.DIRECTED["on"], seat))
    return Clause(subject, dice.pick((verbs.HURRY, verbs.REST)))


def motion(dice: Dice, subject: Nominal) -> Clause:
    verb, goal = dice.pick(_MOTIONS)
    if verb == verbs.DRIVE and isinstance(subject, NounPhrase) and subject.noun.kind == "child":
        verb, goal = verbs.GO, places.to
    clause = Clause(subject, verb, complement=goal(dice, subject))
    if verb != verbs.COME and dice.chance(0.15):
        return clause._replace(manner=lexicon.QUICKLY if dice.chance(0.5) else lexicon.SLOWLY)
    return clause._replace(companion=_companion(dice, subject))


def journey(dice: Dice, subject: Nominal) -> Clause:
    means = dice.pick(_MEANS) if dice.chance(0.6) else EMPTY
    return Clause(subject, verbs.TRAVEL, complement=places.to_city(dice, subject), companion=means)


def residing(dice: Dice, subject: Nominal) -> Clause:
    if dice.chance(0.5):
        return Clause(subject, verbs.STAY, place=places.place(dice, _LODGINGS, subject))
    if dice.chance(0.4):
        return Clause(subject, verbs.LIVE, place=places.city(dice, "in", "in"))
    dwelling = places.location(dice, dice.pick(lexicon.nouns("house city village room")))
    return Clause(subject, verbs.LIVE, place=places.inside(dwelling))


_TRANSITIVE = valency.TRANSITIVE + tuple(t for t in valency.TRANSITIVE if t.verb in (verbs.EAT, verbs.DRINK))
_LODGINGS = lexicon.nouns("house room hospital city village garden museum school lake station")
_MOTIONS = weighted(
    ((verbs.GO, places.to), 4), ((verbs.GO, places.into), 3), ((verbs.GO, places.through), 2),
    ((verbs.GO, places.home), 1), ((verbs.GO, places.to_somebody), 2), ((verbs.RUN, places.to), 2),
    ((verbs.RUN, places.into), 2), ((verbs.RUN, places.through), 2), ((verbs.RUN, places.out_of), 2),
    ((verbs.DRIVE, places.to), 3), ((verbs.DRIVE, places.to_city), 2), ((verbs.DRIVE, places.home), 1),
    ((verbs.DRIVE, places.to_somebody), 1), ((verbs.COME, places.out_of), 3), ((verbs.COME, places.from_), 2),
    ((verbs.COME, places.into_house), 2), ((verbs.COME, places.home), 1),
)  # fmt: skip
_MEANS = (Text("by train", "mit dem Zug"), Text("by bus", "mit dem Bus"), Text("by ship", "mit dem Schiff"))
_ACTIONS: tuple[Callable[[Dice, Nominal], Clause], ...] = weighted(
    (transitive, 36), (dative, 8), (ditransitive, 9), (with_preposition, 8), (receiving, 2), (placing, 7),
    (activity, 10), (separable, 6), (reflexive, 4), (motion, 11), (journey, 2), (residing, 4),
)  # fmt: skip


def deed(dice: Dice, subject: Nominal) -> Clause:
    """Return an action that is neither a state nor a perception."""
    while True:
        clause = action(dice, subject)
        if not clause.verb.stative:
            return clause


def purpose_of(dice: Dice, subject: Nominal) -> Clause:
    """Return an action as the purpose of a motion."""
    while True:
        aim = dice.pick(_PURPOSES)(dice, subject)
        if not aim.verb.stative and aim.verb != verbs.LAUGH:
            return aim._replace(place=EMPTY)


_PURPOSES = (transitive, transitive, transitive, dative, ditransitive, activity, reflexive)

# --- animals and vehicles ----------------------------------------------------------------------------------------


def animal_action(dice: Dice) -> Clause:
    subject = noun_phrase(dice, dice.pick(lexicon.nouns("dog bird cat mouse cow horse")), adjective=0.2)
    if subject.determiner is BARE:
        subject = subject._replace(determiner=THE)
    return dice.pick((_rest, _roam, _meet))(dice, subject)


def _rest(dice: Dice, subject: NounPhrase) -> Clause:
    verb = verbs.SLEEP if dice.chance(0.6) else verbs.PLAY
    if dice.chance(0.3):
        return Clause(subject, verb)
    if dice.chance(0.5):
        return Clause(subject, verb, place=places.inside(places.location(dice, dice.pick(_LAIRS))))
    return Clause(subject, verb, place=places.near(dice, lexicon.STATIC, places.spots_for(subject.noun)))


def _roam(dice: Dice, subject: NounPhrase) -> Clause:
    verb, goal = dice.pick(_ROAMINGS)
    return Clause(subject, verb, complement=goal(dice, subject))


def _meet(dice: Dice, subject: NounPhrase) -> Clause:
    if dice.chance(0.5):
        return Clause(subject, verbs.FOLLOW, dative=human_object(dice, subject))
    noun = dice.pick(lexicon.nouns("man woman child boy girl farmer bird cat mouse dog"))
    return Clause(subject, verbs.SEE if dice.chance(0.6) else verbs.FIND, accusative=noun_phrase(dice, noun))


def transport(dice: Dice) -> Clause:
    """Return the arrival or departure of a train, bus or ship."""
    noun = dice.pick(lexicon.nouns("train bus ship"))
    subject = noun_phrase(dice, noun, plural=0.15, definite=True)._replace(determiner=THE, possessor=None)
    return Clause(subject, verbs.ARRIVE if dice.chance(0.5) else verbs.DEPART)


_LAIRS = lexicon.nouns("garden park forest village house")
_ROAMINGS = (
    (verbs.RUN, places.outdoors_to), (verbs.RUN, places.outdoors_into), (verbs.RUN, places.through),
    (verbs.RUN, places.out_of), (verbs.COME, places.out_of), (verbs.COME, places.outdoors_into),
    (verbs.COME, places.home),
)  # fmt: skip
