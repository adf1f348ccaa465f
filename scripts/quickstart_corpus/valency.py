"""The valency of each verb: the case of its objects, and the nouns that make sense as objects and places."""

from typing import NamedTuple

from . import lexicon, verbs
from .dice import weighted
from .lexicon import Adverb, Noun, Preposition, nouns
from .verbs import Verb


class Transitive(NamedTuple):
    verb: Verb
    objects: tuple[Noun, ...]
    places: tuple[Noun, ...]  # of the action; empty if the place does not matter


def _with(verb: Verb, objects: str, places: str = "") -> Transitive:
    return Transitive(verb, nouns(objects), nouns(places))


_GOODS = (
    "book newspaper table chair bed lamp picture cup glass bottle plate suitcase hat coat jacket shirt dress ball "
    "flower computer gift radio car bicycle house apple cake egg potato bread cheese milk coffee tea horse dog cow"
)
_ACQUAINTANCES = (
    "teacher doctor friend neighbor grandmother grandfather uncle aunt sister brother daughter son mother father "
    "farmer student painter queen woman man"
)
_LOST = "key ball hat coat jacket suitcase book letter dog cat child doctor bicycle picture"
_SHOPS = "market market city village"
TRANSITIVE = (
    _with(verbs.READ, "book letter newspaper story", "garden park kitchen room house school lake window"),
    _with(verbs.WRITE, "book letter story song", "garden kitchen room house school window"),
    _with(verbs.BUY, _GOODS, _SHOPS),
    _with(verbs.SELL, _GOODS, _SHOPS),
    _with(verbs.SEE, "man woman boy girl child teacher doctor farmer neighbor queen dog bird cat mouse cow horse car "
                     "train bus ship house church lake museum picture"),
    _with(verbs.LOOK_FOR, f"{_LOST} station church boy", "garden park kitchen room house school forest"),
    _with(verbs.FIND, f"{_LOST} mouse", "garden park kitchen room house school forest"),
    _with(verbs.NEED, "key computer suitcase coat jacket table chair lamp bicycle car plate glass doctor egg potato "
                      "bread milk water bed shirt"),
    _with(verbs.LOVE, "woman man child mother father daughter son dog cat horse lake garden forest city village"),
    _with(verbs.LIKE, "teacher neighbor uncle aunt grandmother dog cat soup cake cheese coffee tea song story picture "
                      "dress hat museum park"),
    _with(verbs.EAT, "apple cake egg potato soup bread cheese", "kitchen garden park room"),
    _with(verbs.DRINK, "coffee tea milk water", "kitchen garden room station"),
    _with(verbs.COOK, "soup egg potato", "kitchen house village"),
    _with(verbs.VISIT, f"{_ACQUAINTANCES} museum church city village"),
    _with(verbs.HEAR, "song bird dog cow child train story girl"),
    _with(verbs.UNDERSTAND, "question story teacher child book letter song student"),
    _with(verbs.FORGET, "key hat suitcase question gift book jacket letter"),
    _with(verbs.REPAIR, "car bicycle train bus ship chair table bed lamp computer door window radio"),
    _with(verbs.OPEN, "door window letter gift bottle suitcase"),
    _with(verbs.CLOSE, "door window suitcase book bottle"),
    _with(verbs.WASH, "shirt dress jacket coat car dog apple potato"),
    _with(verbs.CARRY, "suitcase chair table bottle gift child lamp plate"),
    _with(verbs.PAINT, "picture flower horse bird cat ship", "garden park forest lake school"),
    _with(verbs.BUILD, "house ship table church school bed"),
    _with(verbs.TAKE, "bus train key cup book suitcase plate apple"),
    _with(verbs.INVITE, _ACQUAINTANCES),
    _with(verbs.PICK_UP, f"{_ACQUAINTANCES} child boy girl gift bicycle suitcase"),
    _with(verbs.CALL, _ACQUAINTANCES),
    _with(verbs.TURN_ON, "lamp computer radio"),
    _with(verbs.TURN_OFF, "lamp computer radio"),
    _with(verbs.TIDY_UP, "room kitchen house garden"),
)  # fmt: skip
DATIVE = (verbs.HELP, verbs.THANK, verbs.ANSWER, verbs.FOLLOW)
DITRANSITIVE = (
    _with(verbs.GIVE, "book ball key flower apple cup glass picture bottle hat newspaper bread water"),
    _with(verbs.SHOW, "picture book house room museum city car garden letter dog"),
    _with(verbs.BRING, "coffee tea soup newspaper chair gift flower plate glass bread milk cheese cake"),
    _with(verbs.SEND, "letter gift picture flower book"),
)


class Prepositional(NamedTuple):
    """The verb chooses the preposition, and with it the case."""

    verb: Verb
    preposition: Preposition
    objects: tuple[Noun, ...]


PREPOSITIONAL = (
    Prepositional(verbs.WAIT, lexicon.WAITING_FOR, (*lexicon.PEOPLE, *nouns("bus train letter ship bus train"))),
    Prepositional(verbs.TALK, lexicon.TALKING_TO, lexicon.PEOPLE),
    Prepositional(verbs.THINK, lexicon.THINKING_OF, lexicon.PEOPLE),
    Prepositional(verbs.PLAY, lexicon.WITH, nouns("child boy girl dog cat ball brother sister friend")),
    Prepositional(verbs.LIVE, lexicon.AT_HOME_OF, nouns("mother father sister brother uncle aunt grandmother friend")),
)


class Activity(NamedTuple):
    """An intransitive verb, and the manners and places that suit it."""

    verb: Verb
    manners: tuple[Adverb, ...]
    places: tuple[Noun, ...]


_QUICKLY, _SLOWLY, _LOUDLY, _QUIETLY = lexicon.QUICKLY, lexicon.SLOWLY, lexicon.LOUDLY, lexicon.QUIETLY
_WELL, _ALONE = lexicon.WELL, lexicon.ALONE
ACTIVITIES = (
    Activity(verbs.SLEEP, (_WELL,), nouns("bed house room garden village")),
    Activity(verbs.WORK, (_QUICKLY, _SLOWLY, _QUIETLY, _ALONE, _WELL),
             nouns("school garden kitchen hospital museum station market city")),
    Activity(verbs.PLAY, (_QUIETLY, _ALONE, _LOUDLY), nouns("park garden forest room lake school")),
    Activity(verbs.SING, (_LOUDLY, _QUIETLY, _WELL, _ALONE), nouns("church school park kitchen")),
    Activity(verbs.DANCE, (_SLOWLY, _WELL, _ALONE), nouns("park garden room city house")),
    Activity(verbs.LAUGH, (_LOUDLY, _QUIETLY), nouns("school kitchen room museum")),
    Activity(verbs.SWIM, (_QUICKLY, _SLOWLY, _WELL, _ALONE), ()),
)  # fmt: skip
SEPARABLE = (verbs.GET_UP, verbs.FALL_ASLEEP, verbs.COME_BACK, verbs.WATCH_TV, verbs.ARRIVE)


class Posture(NamedTuple):
    """A verb of position (with dative), and the verb of putting things there (with accusative)."""

    be_there: Verb
    put_there: Verb
    things: tuple[Noun, ...]


STANDING = Posture(verbs.STAND, verbs.PUT, nouns("bottle glass cup lamp chair plate suitcase table bicycle"))
LYING = Posture(verbs.LIE, verbs.LAY, nouns("book letter newspaper key hat shirt jacket ball"))
HANGING = Posture(verbs.HANG, verbs.HANG, nouns("picture lamp"))
POSTURES = weighted((STANDING, 3), (LYING, 3), (HANGING, 1))
BULKY = nouns("chair suitcase table bicycle cow horse")  # never on or under a table
