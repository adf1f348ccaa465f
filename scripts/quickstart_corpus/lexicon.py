"""The dictionary of the quickstart language: all forms that do not follow from a rule, except verbs (`verbs.py`).

Every English entry has one German equivalent. The entries were checked against Duden (dictionary and grammar); words
with disputed forms are left out.
"""

from typing import Literal, NamedTuple

Gender = Literal["m", "f", "n"]
Case = Literal["nom", "acc", "dat", "gen"]
Person = Literal["1s", "3s", "1p", "3p"]
Kind = Literal[
    "kin", "elder", "person", "child", "animal", "text", "speech", "furniture", "container", "clothes", "object",
    "vehicle", "opening", "food", "bread", "dish", "drink", "building", "room", "town", "nature", "weather",
]  # fmt: skip


class Noun(NamedTuple):
    en: str
    en_plural: str  # empty for mass nouns
    de: str
    de_plural: str
    gender: Gender
    kind: Kind
    genitive: str = ""  # singular; only for nouns that name a possessor
    weak: bool = False  # n-declension


class Adjective(NamedTuple):
    en: str
    de: str
    scale: str  # two adjectives of one scale never describe one thing
    kinds: tuple[str, ...]
    en_comparative: str = ""
    de_comparative: str = ""
    de_stem: str = ""  # before endings, if it differs


class Name(NamedTuple):
    en: str
    gender: Gender


class Preposition(NamedTuple):
    en: str
    de: str
    case: Case


class Adverb(NamedTuple):
    en: str
    de: str
    mid: bool = False  # English puts it before the verb: "often reads"


class Unit(NamedTuple):
    """A unit of time: German gives its dative plural ("vor drei Tagen")."""

    en: str
    de_dative: str


_NOUNS = (
    # people: masculine
    Noun("man", "men", "Mann", "Männer", "m", "person", "Mannes"),
    Noun("father", "fathers", "Vater", "Väter", "m", "kin", "Vaters"),
    Noun("son", "sons", "Sohn", "Söhne", "m", "kin", "Sohnes"),
    Noun("brother", "brothers", "Bruder", "Brüder", "m", "kin", "Bruders"),
    Noun("uncle", "uncles", "Onkel", "Onkel", "m", "kin", "Onkels"),
    Noun("grandfather", "grandfathers", "Großvater", "Großväter", "m", "elder", "Großvaters"),
    Noun("friend", "friends", "Freund", "Freunde", "m", "kin", "Freundes"),
    Noun("neighbor", "neighbors", "Nachbar", "Nachbarn", "m", "kin", weak=True),
    Noun("teacher", "teachers", "Lehrer", "Lehrer", "m", "person", "Lehrers"),
    Noun("doctor", "doctors", "Arzt", "Ärzte", "m", "person", "Arztes"),
    Noun("farmer", "farmers", "Bauer", "Bauern", "m", "person", weak=True),
    Noun("student", "students", "Student", "Studenten", "m", "person", weak=True),
    Noun("painter", "painters", "Maler", "Maler", "m", "person", "Malers"),
    Noun("boy", "boys", "Junge", "Jungen", "m", "child", weak=True),
    # people: feminine and neuter
    Noun("woman", "women", "Frau", "Frauen", "f", "person"),
    Noun("mother", "mothers", "Mutter", "Mütter", "f", "kin"),
    Noun("daughter", "daughters", "Tochter", "Töchter", "f", "kin"),
    Noun("sister", "sisters", "Schwester", "Schwestern", "f", "kin"),
    Noun("aunt", "aunts", "Tante", "Tanten", "f", "kin"),
    Noun("grandmother", "grandmothers", "Großmutter", "Großmütter", "f", "elder"),
    Noun("queen", "queens", "Königin", "Königinnen", "f", "person"),
    Noun("girl", "girls", "Mädchen", "Mädchen", "n", "child", "Mädchens"),
    Noun("child", "children", "Kind", "Kinder", "n", "child", "Kindes"),
    # animals
    Noun("dog", "dogs", "Hund", "Hunde", "m", "animal"),
    Noun("bird", "birds", "Vogel", "Vögel", "m", "animal"),
    Noun("cat", "cats", "Katze", "Katzen", "f", "animal"),
    Noun("mouse", "mice", "Maus", "Mäuse", "f", "animal"),
    Noun("cow", "cows", "Kuh", "Kühe", "f", "animal"),
    Noun("horse", "horses", "Pferd", "Pferde", "n", "animal"),
    # things to read, say and sing
    Noun("letter", "letters", "Brief", "Briefe", "m", "text"),
    Noun("newspaper", "newspapers", "Zeitung", "Zeitungen", "f", "text"),
    Noun("story", "stories", "Geschichte", "Geschichten", "f", "text"),
    Noun("book", "books", "Buch", "Bücher", "n", "text"),
    Noun("question", "questions", "Frage", "Fragen", "f", "speech"),
    Noun("song", "songs", "Lied", "Lieder", "n", "speech"),
    # furniture, containers, clothes
    Noun("table", "tables", "Tisch", "Tische", "m", "furniture"),
    Noun("chair", "chairs", "Stuhl", "Stühle", "m", "furniture"),
    Noun("lamp", "lamps", "Lampe", "Lampen", "f", "furniture"),
    Noun("bed", "beds", "Bett", "Betten", "n", "furniture"),
    Noun("plate", "plates", "Teller", "Teller", "m", "container"),
    Noun("suitcase", "suitcases", "Koffer", "Koffer", "m", "container"),
    Noun("cup", "cups", "Tasse", "Tassen", "f", "container"),
    Noun("bottle", "bottles", "Flasche", "Flaschen", "f", "container"),
    Noun("glass", "glasses", "Glas", "Gläser", "n", "container"),
    Noun("hat", "hats", "Hut", "Hüte", "m", "clothes"),
    Noun("coat", "coats", "Mantel", "Mäntel", "m", "clothes"),
    Noun("jacket", "jackets", "Jacke", "Jacken", "f", "clothes"),
    Noun("shirt", "shirts", "Hemd", "Hemden", "n", "clothes"),
    Noun("dress", "dresses", "Kleid", "Kleider", "n", "clothes"),
    # other things, vehicles, parts of a house
    Noun("ball", "balls", "Ball", "Bälle", "m", "object"),
    Noun("key", "keys", "Schlüssel", "Schlüssel", "m", "object"),
    Noun("computer", "computers", "Computer", "Computer", "m", "object"),
    Noun("flower", "flowers", "Blume", "Blumen", "f", "object"),
    Noun("picture", "pictures", "Bild", "Bilder", "n", "object"),
    Noun("gift", "gifts", "Geschenk", "Geschenke", "n", "object"),
    Noun("radio", "radios", "Radio", "Radios", "n", "object"),
    Noun("train", "trains", "Zug", "Züge", "m", "vehicle"),
    Noun("bus", "buses", "Bus", "Busse", "m", "vehicle"),
    Noun("car", "cars", "Auto", "Autos", "n", "vehicle"),
    Noun("bicycle", "bicycles", "Fahrrad", "Fahrräder", "n", "vehicle"),
    Noun("ship", "ships", "Schiff", "Schiffe", "n", "vehicle"),
    Noun("door", "doors", "Tür", "Türen", "f", "opening"),
    Noun("window", "windows", "Fenster", "Fenster", "n", "opening"),
    Noun("wall", "walls", "Wand", "Wände", "f", "opening"),
    # food and drink
    Noun("apple", "apples", "Apfel", "Äpfel", "m", "food"),
    Noun("cake", "cakes", "Kuchen", "Kuchen", "m", "food"),
    Noun("potato", "potatoes", "Kartoffel", "Kartoffeln", "f", "food"),
    Noun("egg", "eggs", "Ei", "Eier", "n", "food"),
    Noun("soup", "soups", "Suppe", "Suppen", "f", "dish"),
    Noun("cheese", "", "Käse", "", "m", "bread"),
    Noun("bread", "", "Brot", "", "n", "bread"),
    Noun("coffee", "", "Kaffee", "", "m", "drink"),
    Noun("tea", "", "Tee", "", "m", "drink"),
    Noun("milk", "", "Milch", "", "f", "drink"),
    Noun("water", "", "Wasser", "", "n", "drink"),
    # places
    Noun("station", "stations", "Bahnhof", "Bahnhöfe", "m", "building"),
    Noun("school", "schools", "Schule", "Schulen", "f", "building"),
    Noun("church", "churches", "Kirche", "Kirchen", "f", "building"),
    Noun("house", "houses", "Haus", "Häuser", "n", "building"),
    Noun("museum", "museums", "Museum", "Museen", "n", "building"),
    Noun("hospital", "hospitals", "Krankenhaus", "Krankenhäuser", "n", "building"),
    Noun("kitchen", "kitchens", "Küche", "Küchen", "f", "room"),
    Noun("room", "rooms", "Zimmer", "Zimmer", "n", "room"),
    Noun("market", "markets", "Markt", "Märkte", "m", "town"),
    Noun("city", "cities", "Stadt", "Städte", "f", "town"),
    Noun("village", "villages", "Dorf", "Dörfer", "n", "town"),
    Noun("garden", "gardens", "Garten", "Gärten", "m", "nature"),
    Noun("park", "parks", "Park", "Parks", "m", "nature"),
    Noun("forest", "forests", "Wald", "Wälder", "m", "nature"),
    Noun("lake", "lakes", "See", "Seen", "m", "nature"),
    Noun("weather", "", "Wetter", "", "n", "weather"),
)
NOUNS = {noun.en: noun for noun in _NOUNS}


def nouns(words: str) -> tuple[Noun, ...]:
    return tuple(NOUNS[word] for word in words.split())


KIN = nouns("father mother son daughter brother sister uncle aunt grandfather grandmother friend neighbor")
STRANGERS = nouns("man woman boy girl child teacher doctor farmer student painter queen")
PEOPLE = KIN + STRANGERS
UNOWNED = STRANGERS + nouns("station church museum hospital market park forest lake city village")  # not "my woman"
PARENTS = nouns("father mother")
POSSESSORS = nouns("father mother son brother sister uncle aunt friend neighbor teacher doctor farmer student queen")
PROFESSIONS = nouns("teacher doctor farmer student painter")


def _adjective(words: str, scale: str, kinds: str, comparative: str = "", stem: str = "") -> Adjective:
    en, de = words.split("/")
    en_comparative, de_comparative = comparative.split("/") if comparative else ("", "")
    return Adjective(en, de, scale, tuple(kinds.split()), en_comparative, de_comparative, stem)


_THINGS = "furniture container clothes object vehicle opening"
_HUMANS = "kin elder person child"
ADJECTIVES = (
    _adjective("old/alt", "age", f"kin person animal text building town {_THINGS}", "older/älter"),
    _adjective("new/neu", "age", f"text building {_THINGS}", "newer/neuer"),
    _adjective("young/jung", "age", "kin person animal", "younger/jünger"),
    _adjective("big/groß", "size", "animal furniture container object vehicle opening building room town nature food",
               "bigger/größer"),
    _adjective("small/klein", "size", "child animal furniture container object opening building room town nature food",
               "smaller/kleiner"),
    _adjective("long/lang", "length", "text speech", "longer/länger"),
    _adjective("short/kurz", "length", "text speech", "shorter/kürzer"),
    _adjective("beautiful/schön", "look", "animal furniture clothes object building town nature weather",
               "more beautiful/schöner"),
    _adjective("good/gut", "quality", "kin text speech food bread dish drink weather"),
    _adjective("bad/schlecht", "quality", "text speech weather"),
    _adjective("interesting/interessant", "interest", "text speech building town", "more interesting/interessanter"),
    _adjective("difficult/schwierig", "effort", "text speech", "more difficult/schwieriger"),
    _adjective("warm/warm", "heat", "dish drink clothes room weather", "warmer/wärmer"),
    _adjective("cold/kalt", "heat", "dish drink room weather", "colder/kälter"),
    _adjective("hot/heiß", "heat", "dish drink", "hotter/heißer"),
    _adjective("fresh/frisch", "freshness", "food bread"),
    _adjective("red/rot", "color", "furniture container clothes object vehicle"),
    _adjective("blue/blau", "color", "furniture container clothes object vehicle"),
    _adjective("green/grün", "color", "furniture container clothes vehicle opening"),
    _adjective("black/schwarz", "color", "animal clothes vehicle"),
    _adjective("white/weiß", "color", "animal furniture container clothes opening"),
    _adjective("expensive/teuer", "price", "furniture clothes object vehicle text food bread",
               "more expensive/teurer", "teur"),
    _adjective("cheap/billig", "price", "furniture clothes object vehicle food bread", "cheaper/billiger"),
    _adjective("clean/sauber", "dirt", "container clothes vehicle opening room"),
    _adjective("dirty/schmutzig", "dirt", "container clothes vehicle opening room"),
    _adjective("empty/leer", "content", "container room"),
    _adjective("dark/dunkel", "light", "room nature", "darker/dunkler", "dunkl"),
    _adjective("fast/schnell", "speed", "vehicle", "faster/schneller"),
    _adjective("famous/berühmt", "fame", "person building"),
    _adjective("rich/reich", "wealth", "kin person", "richer/reicher"),
    _adjective("strong/stark", "strength", "kin person animal", "stronger/stärker"),
    _adjective("friendly/freundlich", "manner", _HUMANS, "friendlier/freundlicher"),
    _adjective("happy/glücklich", "mood", _HUMANS, "happier/glücklicher"),
    _adjective("sad/traurig", "mood", _HUMANS),
    _adjective("tired/müde", "state", f"{_HUMANS} animal", stem="müd"),
    _adjective("sick/krank", "health", f"{_HUMANS} animal"),
    _adjective("hungry/hungrig", "hunger", f"{_HUMANS} animal"),
)  # fmt: skip
# Adjectives by kind of noun. Adjectives of few kinds are repeated, so that none is rare.
ADJECTIVES_FOR = {
    noun.kind: tuple(a for a in ADJECTIVES if noun.kind in a.kinds for _ in range(max(1, 5 - len(a.kinds))))
    for noun in _NOUNS
}
STATES = tuple(a for a in ADJECTIVES if a.scale in ("mood", "state", "health", "hunger"))

NAMES = (
    Name("Anna", "f"), Name("Maria", "f"), Name("Julia", "f"), Name("Laura", "f"),
    Name("Peter", "m"), Name("Paul", "m"), Name("Martin", "m"), Name("David", "m"),
)  # fmt: skip
CITIES = (
    ("Berlin", "Berlin"), ("Hamburg", "Hamburg"), ("Munich", "München"), ("Cologne", "Köln"), ("Vienna", "Wien"),
)  # fmt: skip

NUMBERS = (
    ("two", "zwei"), ("three", "drei"), ("four", "vier"), ("five", "fünf"), ("six", "sechs"), ("seven", "sieben"),
    ("eight", "acht"), ("nine", "neun"), ("ten", "zehn"), ("eleven", "elf"), ("twelve", "zwölf"),
    ("thirteen", "dreizehn"), ("fourteen", "vierzehn"), ("fifteen", "fünfzehn"), ("sixteen", "sechzehn"),
    ("seventeen", "siebzehn"), ("eighteen", "achtzehn"), ("nineteen", "neunzehn"), ("twenty", "zwanzig"),
)  # fmt: skip
HOURS = (("one", "ein"), *NUMBERS[:11])
UNITS = (Unit("days", "Tagen"), Unit("weeks", "Wochen"), Unit("months", "Monaten"), Unit("years", "Jahren"))

# Time adverbials by tense. Habit and past share none, because "I read" and "I put" would be ambiguous.
NOW = (Adverb("now", "jetzt"), Adverb("today", "heute"))
NEVER = Adverb("never", "nie", True)
FREQUENCY = (
    Adverb("often", "oft", True), Adverb("always", "immer", True), Adverb("sometimes", "manchmal", True),
    NEVER,
)  # fmt: skip
REGULAR = (
    Adverb("every day", "jeden Tag"), Adverb("every morning", "jeden Morgen"), Adverb("every evening", "jeden Abend"),
    Adverb("in summer", "im Sommer"), Adverb("in winter", "im Winter"),
)  # fmt: skip
HABIT = FREQUENCY + REGULAR
PLAIN_PAST = (Adverb("yesterday", "gestern"), Adverb("last week", "letzte Woche"))
PLAIN_FUTURE = (Adverb("tomorrow", "morgen"), Adverb("next week", "nächste Woche"), Adverb("today", "heute"))
WEEKDAYS = tuple(
    Adverb(f"on {en}", f"am {de}")
    for en, de in (
        ("Monday", "Montag"), ("Tuesday", "Dienstag"), ("Wednesday", "Mittwoch"), ("Thursday", "Donnerstag"),
        ("Friday", "Freitag"), ("Saturday", "Samstag"), ("Sunday", "Sonntag"),
    )
)  # fmt: skip
OCCASIONS = (
    Adverb("in the morning", "am Morgen"), Adverb("in the evening", "am Abend"),
    Adverb("after the concert", "nach dem Konzert"), Adverb("before the concert", "vor dem Konzert"),
    Adverb("after the trip", "nach der Reise"), Adverb("before the trip", "vor der Reise"),
)  # fmt: skip

QUICKLY, SLOWLY = Adverb("quickly", "schnell"), Adverb("slowly", "langsam")
LOUDLY, QUIETLY = Adverb("loudly", "laut"), Adverb("quietly", "leise")
WELL, ALONE = Adverb("well", "gut"), Adverb("alone", "allein")

IN, INTO = Preposition("in", "in", "dat"), Preposition("into", "in", "acc")
AT, AT_MARKET = Preposition("at", "an", "dat"), Preposition("at", "auf", "dat")
ON_WALL, ONTO_WALL = Preposition("on", "an", "dat"), Preposition("on", "an", "acc")
LOCATIVES = {"station": AT, "lake": AT, "window": AT, "market": AT_MARKET}  # elsewhere: in
TO, FROM = Preposition("to", "zu", "dat"), Preposition("from", "von", "dat")
OUT_OF, THROUGH = Preposition("out of", "aus", "dat"), Preposition("through", "durch", "acc")
WITH, AT_HOME_OF = Preposition("with", "mit", "dat"), Preposition("with", "bei", "dat")
FOR, WITHOUT = Preposition("for", "für", "acc"), Preposition("without", "ohne", "acc")
WAITING_FOR, THINKING_OF = Preposition("for", "auf", "acc"), Preposition("of", "an", "acc")
TALKING_TO = Preposition("to", "mit", "dat")
# Two-way prepositions take the dative for a place and the accusative for a direction.
TWO_WAY = (("on", "auf"), ("under", "unter"), ("behind", "hinter"), ("next to", "neben"), ("in front of", "vor"))
STATIC = {en: Preposition(en, de, "dat") for en, de in TWO_WAY}
DIRECTED = {en: Preposition(en, de, "acc") for en, de in TWO_WAY}
