"""Tense, modal verb, negation and time adverbial of an action."""

from . import lexicon, verbs
from .clause import Clause
from .dice import Dice, weighted
from .lexicon import Adverb
from .morphology import COUNTS, EMPTY, NounPhrase


def add_time(dice: Dice, clause: Clause, *, embedded: bool = False) -> Clause:
    """Add tense, modal verb, negation and time. An embedded clause keeps its subject in front."""
    negated = can_be_negated(clause) and dice.chance(0.15)
    clause, time = _add_tense(dice, clause, negated)
    bare_object = clause.accusative is not None or clause.dative is not None
    if embedded and negated and bare_object:
        time = None
    if embedded or time is None:
        clause = clause._replace(negated=negated, time=time)
        can_front = clause.place.en and not embedded and not negated and clause.verb not in (verbs.LIVE, verbs.STAY)
        return clause._replace(front="place") if can_front and dice.chance(0.12) else clause
    # Time goes to the front, to keep "nicht" next to the object.
    front = (not time.mid or time.en == "sometimes") and (dice.chance(0.42) or (negated and bare_object))
    return clause._replace(negated=negated, time=time, front="time" if front else "subject")


def can_be_negated(clause: Clause) -> bool:
    """Return False where German would stress one part: "not three books", "to no child", "not for her"."""
    counted = isinstance(clause.accusative, NounPhrase) and clause.accusative.determiner in COUNTS
    to_any = isinstance(clause.dative, NounPhrase) and not clause.dative.determiner.definite
    for_somebody = clause.verb == verbs.BUY and clause.complement.en
    return not (counted or to_any or for_somebody)


def _add_tense(dice: Dice, clause: Clause, negated: bool) -> tuple[Clause, Adverb | None]:
    stative = clause.verb.stative
    if dice.chance(0.32):
        dated = clause.verb not in _LASTING and dice.chance(0.3 if stative else 0.55)
        return clause._replace(tense="past"), past_time(dice, negated) if dated else None
    if dice.chance(0.15 if stative else 0.36):
        return _with_modal(dice, clause, negated)
    if stative:
        return clause, None
    if not negated and dice.chance(0.3):
        return clause, dice.pick(lexicon.HABIT)
    return clause._replace(tense="progressive"), dice.pick(lexicon.NOW) if dice.chance(0.35) else None


def _with_modal(dice: Dice, clause: Clause, negated: bool) -> tuple[Clause, Adverb | None]:
    modal = dice.pick(_MODALS)
    willing = not isinstance(clause.subject, NounPhrase) or clause.subject.noun.kind != "vehicle"
    if clause.verb.stative or not willing:
        modal = verbs.WILL
    if modal.gern:
        return clause._replace(modal=modal, place=EMPTY if clause.accusative else clause.place), None
    if modal.en_past and dice.chance(0.25):
        return clause._replace(modal=modal, tense="past"), past_time(dice, negated) if dice.chance(0.5) else None
    return clause._replace(modal=modal), future_time(dice, negated) if dice.chance(0.4) else None


def remove_time(clause: Clause) -> Clause:
    """Remove the time adverbial. A habit becomes progressive, because "I read" alone could be the past."""
    habit = clause.tense == "present" and clause.modal is None and not clause.verb.stative
    return clause._replace(time=None, tense="progressive" if habit else clause.tense)


def past_time(dice: Dice, plain: bool) -> Adverb:
    if plain or dice.chance(0.4):
        return dice.pick(lexicon.PLAIN_PAST)
    if dice.chance(0.35):
        (en, de), unit = dice.pick(lexicon.NUMBERS[:9]), dice.pick(lexicon.UNITS)
        return Adverb(f"{en} {unit.en} ago", f"vor {de} {unit.de_dative}")
    return _date(dice)


def future_time(dice: Dice, plain: bool) -> Adverb:
    if plain or dice.chance(0.45):
        return dice.pick(lexicon.PLAIN_FUTURE)
    if dice.chance(0.2):
        (en, de), unit = dice.pick(lexicon.NUMBERS[:9]), dice.pick(lexicon.UNITS[:3])
        return Adverb(f"in {en} {unit.en}", f"in {de} {unit.de_dative}")
    return _date(dice)


def _date(dice: Dice) -> Adverb:
    if dice.chance(0.4):
        return dice.pick(lexicon.WEEKDAYS)
    if dice.chance(0.5):
        en, de = dice.pick(lexicon.HOURS)
        return Adverb(f"at {en} o'clock", f"um {de} Uhr")
    return dice.pick(lexicon.OCCASIONS)


_LASTING = (verbs.LOVE, verbs.LIKE, verbs.LIVE)  # take no date
_MODALS = weighted(
    (verbs.WILL, 5), (verbs.CAN, 4), (verbs.WANT_TO, 4), (verbs.HAVE_TO, 4), (verbs.SHOULD, 2), (verbs.MAY, 2),
    (verbs.LIKE_TO, 3),
)  # fmt: skip
