"""Places and goals: two-way prepositions take the dative for a place and the accusative for a goal."""

from collections.abc import Callable

from . import lexicon, valency
from .dice import Dice, weighted
from .lexicon import Noun, Preposition
from .morphology import THE, Nominal, NounPhrase, Text, prepositional
from .phrases import human_object, noun_phrase

Goal = Callable[[Dice, Nominal], Text]
Spots = tuple[tuple[str, tuple[Noun, ...]], ...]  # furniture for on, under, behind ...


def place(dice: Dice, sites: tuple[Noun, ...], owner: Nominal | None = None) -> Text:
    """Return a place: at home, in a city, or at one of the sites."""
    if dice.chance(0.12):
        return Text("at home", "zu Hause")
    if dice.chance(0.1):
        return city(dice, "in", "in")
    return inside(location(dice, dice.pick(sites), owner))


def inside(where: NounPhrase) -> Text:
    """Return "in" a location, or "at" the lake, station, window or market."""
    return prepositional(lexicon.LOCATIVES.get(where.noun.en, lexicon.IN), where)


def location(dice: Dice, noun: Noun, owner: Nominal | None = None) -> NounPhrase:
    """Return a place as a noun phrase, mostly with the definite article."""
    if dice.chance(0.6):
        return NounPhrase(noun, THE)
    return noun_phrase(dice, noun, owner=owner, plural=0)


def city(dice: Dice, en_preposition: str, de_preposition: str) -> Text:
    """Return a city with a preposition and without article."""
    en, de = dice.pick(lexicon.CITIES)
    return Text(f"{en_preposition} {en}", f"{de_preposition} {de}")


def near(dice: Dice, prepositions: dict[str, Preposition], spots: Spots) -> Text:
    relation, landmarks = dice.pick(spots)
    return prepositional(prepositions[relation], location(dice, dice.pick(landmarks)))


def spots_for(noun: Noun) -> Spots:
    return _BULKY_SPOTS if noun in valency.BULKY else SPOTS


def on_wall(preposition: Preposition) -> Text:
    return prepositional(preposition, NounPhrase(lexicon.NOUNS["wall"], THE))


SPOTS: Spots = weighted(
    (("on", lexicon.nouns("table chair bed")), 4),
    (("under", lexicon.nouns("table chair bed")), 1),
    (("next to", lexicon.nouns("table chair bed door")), 1),
    (("behind", lexicon.nouns("door chair bed")), 1),
    (("in front of", lexicon.nouns("door window bed")), 1),
)
_BULKY_SPOTS: Spots = (
    ("next to", lexicon.nouns("bed door window house")),
    ("behind", lexicon.nouns("door house")),
    ("in front of", lexicon.nouns("house door window bed")),
)
SEATS: Spots = (("on", lexicon.nouns("chair bed")), *_BULKY_SPOTS)

# --- goals -------------------------------------------------------------------------------------------------------


def _goal(preposition: Preposition, choices: tuple[Noun, ...]) -> Goal:
    return lambda dice, subject: prepositional(preposition, location(dice, dice.pick(choices), subject))


def to_city(dice: Dice, _subject: Nominal) -> Text:
    return city(dice, "to", "nach")


def home(_dice: Dice, _subject: Nominal) -> Text:
    return Text("home", "nach Hause")


def to_somebody(dice: Dice, subject: Nominal) -> Text:
    return prepositional(lexicon.TO, human_object(dice, subject, _HOSTS, pronouns=0))


_HOSTS = lexicon.nouns("doctor neighbor farmer grandmother grandfather uncle aunt friend sister brother teacher")
to = _goal(lexicon.TO, lexicon.nouns("park market station school church museum hospital lake"))
into = _goal(lexicon.INTO, lexicon.nouns("garden kitchen house room city forest church museum school hospital"))
through = _goal(lexicon.THROUGH, lexicon.nouns("park forest city garden village house"))
into_house = _goal(lexicon.INTO, lexicon.nouns("house room kitchen garden church school"))
out_of = _goal(lexicon.OUT_OF, lexicon.nouns("house garden kitchen room museum church school hospital forest"))
from_ = _goal(lexicon.FROM, lexicon.nouns("station market lake"))
outdoors_to = _goal(lexicon.TO, lexicon.nouns("park lake house"))  # where animals run
outdoors_into = _goal(lexicon.INTO, lexicon.nouns("garden forest house village"))
