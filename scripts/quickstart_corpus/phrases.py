"""Random noun phrases: persons and things as subjects and objects."""

from collections.abc import Sequence

from . import lexicon
from .dice import Dice, weighted
from .lexicon import Adjective, Noun
from .morphology import (
    BARE,
    COUNTS,
    HE,
    ME,
    MY,
    OUR,
    POSSESSIVES,
    SHE,
    THE,
    THEY,
    THIS,
    WE,
    A,
    Nominal,
    NounPhrase,
    Pronoun,
    ProperName,
    possessive_for,
    pronoun_for,
)

_KINDS = {  # of determiners, by (kin, plural)
    (False, False): weighted(("the", 48), ("a", 28), ("possessive", 16), ("this", 8)),
    (False, True): weighted(("the", 34), ("bare", 24), ("count", 26), ("possessive", 8), ("this", 8)),
    (True, False): weighted(("the", 40), ("a", 8), ("possessive", 48), ("this", 4)),
    (True, True): weighted(("the", 38), ("count", 20), ("possessive", 38), ("this", 4)),
}
_SUBJECT_PRONOUNS = weighted((ME, 5), (WE, 2), (HE, 2), (SHE, 2), (THEY, 2))
_SELF = (MY, OUR)


def adjective_for(dice: Dice, noun: Noun) -> Adjective:
    return dice.pick(lexicon.ADJECTIVES_FOR[noun.kind])


def noun_phrase(
    dice: Dice,
    noun: Noun,
    *,
    owner: Nominal | None = None,
    plural: float = 0.22,
    adjective: float = 0.33,
    definite: bool = False,
) -> NounPhrase:
    """Return a phrase with this noun. A possessive refers to the owner, if one is given."""
    quality = adjective_for(dice, noun) if dice.chance(adjective) else None
    if not noun.en_plural:
        return NounPhrase(noun, THE if definite or dice.chance(0.4) else BARE, adjective=quality)
    kin = noun in lexicon.KIN
    many = dice.chance(plural)
    kind = dice.pick(_KINDS[kin, many])
    unowned = noun in lexicon.UNOWNED or (many and noun in lexicon.PARENTS)
    if (kind == "possessive" and unowned) or (definite and kind in ("a", "bare", "count")):
        kind = "the"
    if kind == "the" and not many and noun not in lexicon.UNOWNED and dice.chance(0.12):
        return NounPhrase(noun, THE, adjective=quality, possessor=possessor(dice))
    if kind == "possessive":
        return NounPhrase(noun, (possessive_for(owner) if owner else None) or dice.pick(_SELF), many, quality)
    if kind == "count":
        return NounPhrase(noun, dice.pick(COUNTS[:4] if kin else COUNTS), many, quality)
    return NounPhrase(noun, {"the": THE, "a": A, "this": THIS, "bare": BARE}[kind], many, quality)


def possessor(dice: Dice) -> NounPhrase | ProperName:
    """ "the teacher's", "my father's", "Anna's"."""
    if dice.chance(0.3):
        return ProperName(dice.pick(lexicon.NAMES))
    noun = dice.pick(lexicon.POSSESSORS)
    return NounPhrase(noun, dice.pick(POSSESSIVES) if noun in lexicon.KIN and dice.chance(0.4) else THE)


def human(dice: Dice, *, pronouns: float = 0.26) -> Nominal:
    """Return a person as a subject: a pronoun, a name or a noun phrase."""
    if dice.chance(pronouns):
        return dice.pick(_SUBJECT_PRONOUNS)
    if dice.chance(0.14):
        return ProperName(dice.pick(lexicon.NAMES))
    return person(dice)


def person(dice: Dice, *, adjective: float = 0.2) -> NounPhrase:
    noun = dice.pick(lexicon.PEOPLE)
    phrase = noun_phrase(dice, noun, plural=0.24, adjective=adjective)
    if phrase.determiner is BARE:
        return phrase._replace(determiner=THE)
    if phrase.determiner in _SELF and dice.chance(0.4):
        return phrase._replace(determiner=dice.pick(POSSESSIVES))
    return phrase


def antecedent(dice: Dice) -> tuple[Nominal, Pronoun]:
    """Return a person as a subject, and the pronoun that refers to it."""
    while True:
        subject = human(dice)
        pronoun = pronoun_for(subject)
        if pronoun:
            return subject, pronoun


def human_object(
    dice: Dice, owner: Nominal, choices: Sequence[Noun] = lexicon.PEOPLE, *, pronouns: float = 0.14
) -> Nominal:
    """Return a person as an object: mostly a noun phrase, sometimes a pronoun or a name."""
    if dice.chance(pronouns):
        pronoun = dice.pick(_SUBJECT_PRONOUNS)
        clash = owner in (ME, WE) and pronoun in (ME, WE)
        return HE if clash else pronoun
    if not isinstance(owner, ProperName) and dice.chance(0.08):  # "Dankt Anna Laura?": names show no case
        return ProperName(dice.pick(lexicon.NAMES))
    phrase = noun_phrase(dice, dice.pick(choices), owner=owner, adjective=0.2)
    return phrase._replace(determiner=THE) if phrase.determiner is BARE else phrase
