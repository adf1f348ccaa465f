"""The verbs of the quickstart language and their principal parts.

A German entry lists the forms of a dictionary: infinitive (with "|" after a separable prefix), third person singular
of the present, and past participle. Verbs of motion or change of state form the perfect with sein.
"""

from typing import NamedTuple


class Verb(NamedTuple):
    en: str
    en_third: str
    en_past: str
    en_ing: str
    particle: str  # "picks him up", "picks up the child"
    preposition: str  # "looks for him", "belongs to him"
    prefix: str  # separable: "holt ... ab", "abholt"
    de: str  # infinitive without the prefix
    de_first: str
    de_third: str
    de_plural: str
    participle: str
    preterite: str  # if German prefers it to the perfect
    perfect_with_sein: bool
    reflexive: bool
    stative: bool  # no progressive in English

    @property
    def infinitive(self) -> str:
        return self.prefix + self.de

    @property
    def lemma(self) -> str:
        return " ".join(filter(None, (self.en, self.particle, self.preposition)))


def _verb(
    english: str,
    german: str,
    *,
    particle: str = "",
    preposition: str = "",
    present: str = "",
    preterite: str = "",
    sein: bool = False,
    reflexive: bool = False,
    stative: bool = False,
) -> Verb:
    base, third, past, ing = english.split()
    dictionary_form, de_third, participle = german.split()
    prefix, _, infinitive = dictionary_form.rpartition("|")
    first, plural = present.split() if present else (infinitive[:-1], infinitive)
    return Verb(
        base, third, past, ing, particle, preposition,
        prefix, infinitive, first, de_third, plural, participle, preterite, sein, reflexive, stative,
    )  # fmt: skip


# auxiliaries and verbs of thinking and saying
BE = _verb("be is was being", "sein ist gewesen", present="bin sind", preterite="war", sein=True, stative=True)
HAVE = _verb("have has had having", "haben hat gehabt", preterite="hatte", stative=True)
KNOW = _verb("know knows knew knowing", "wissen weiß gewusst", present="weiß wissen", preterite="wusste", stative=True)
BELIEVE = _verb("believe believes believed believing", "glauben glaubt geglaubt", stative=True)
SAY = _verb("say says said saying", "sagen sagt gesagt", stative=True)
HOPE = _verb("hope hopes hoped hoping", "hoffen hofft gehofft", stative=True)
ASK = _verb("ask asks asked asking", "fragen fragt gefragt", stative=True)

# with an accusative
READ = _verb("read reads read reading", "lesen liest gelesen")
WRITE = _verb("write writes wrote writing", "schreiben schreibt geschrieben")
BUY = _verb("buy buys bought buying", "kaufen kauft gekauft")
SELL = _verb("sell sells sold selling", "verkaufen verkauft verkauft")
SEE = _verb("see sees saw seeing", "sehen sieht gesehen", stative=True)
LOOK_FOR = _verb("look looks looked looking", "suchen sucht gesucht", preposition="for")
FIND = _verb("find finds found finding", "finden findet gefunden", stative=True)
NEED = _verb("need needs needed needing", "brauchen braucht gebraucht", stative=True)
LOVE = _verb("love loves loved loving", "lieben liebt geliebt", stative=True)
LIKE = _verb("like likes liked liking", "mögen mag gemocht", present="mag mögen", preterite="mochte", stative=True)
EAT = _verb("eat eats ate eating", "essen isst gegessen")
DRINK = _verb("drink drinks drank drinking", "trinken trinkt getrunken")
COOK = _verb("cook cooks cooked cooking", "kochen kocht gekocht")
VISIT = _verb("visit visits visited visiting", "besuchen besucht besucht")
HEAR = _verb("hear hears heard hearing", "hören hört gehört", stative=True)
UNDERSTAND = _verb("understand understands understood understanding", "verstehen versteht verstanden", stative=True)
FORGET = _verb("forget forgets forgot forgetting", "vergessen vergisst vergessen", stative=True)
REPAIR = _verb("repair repairs repaired repairing", "reparieren repariert repariert")
OPEN = _verb("open opens opened opening", "öffnen öffnet geöffnet")
CLOSE = _verb("close closes closed closing", "schließen schließt geschlossen")
WASH = _verb("wash washes washed washing", "waschen wäscht gewaschen")
CARRY = _verb("carry carries carried carrying", "tragen trägt getragen")
PAINT = _verb("paint paints painted painting", "malen malt gemalt")
BUILD = _verb("build builds built building", "bauen baut gebaut")
TAKE = _verb("take takes took taking", "nehmen nimmt genommen")
GET_FROM = _verb("get gets got getting", "bekommen bekommt bekommen")

# separable
INVITE = _verb("invite invites invited inviting", "ein|laden lädt eingeladen")
PICK_UP = _verb("pick picks picked picking", "ab|holen holt abgeholt", particle="up")
CALL = _verb("call calls called calling", "an|rufen ruft angerufen")
TURN_ON = _verb("turn turns turned turning", "ein|schalten schaltet eingeschaltet", particle="on")
TURN_OFF = _verb("turn turns turned turning", "aus|schalten schaltet ausgeschaltet", particle="off")
TIDY_UP = _verb("tidy tidies tidied tidying", "auf|räumen räumt aufgeräumt", particle="up")
GET_UP = _verb("get gets got getting", "auf|stehen steht aufgestanden", particle="up", sein=True)
FALL_ASLEEP = _verb("fall falls fell falling", "ein|schlafen schläft eingeschlafen", particle="asleep", sein=True)
COME_BACK = _verb("come comes came coming", "zurück|kommen kommt zurückgekommen", particle="back", sein=True)
WATCH_TV = _verb("watch watches watched watching", "fern|sehen sieht ferngesehen", particle="TV")
ARRIVE = _verb("arrive arrives arrived arriving", "an|kommen kommt angekommen", sein=True)
DEPART = _verb("depart departs departed departing", "ab|fahren fährt abgefahren", sein=True)

# with a dative, with both
HELP = _verb("help helps helped helping", "helfen hilft geholfen")
THANK = _verb("thank thanks thanked thanking", "danken dankt gedankt")
ANSWER = _verb("answer answers answered answering", "antworten antwortet geantwortet")
FOLLOW = _verb("follow follows followed following", "folgen folgt gefolgt", sein=True)
BELONG = _verb("belong belongs belonged belonging", "gehören gehört gehört", preposition="to", stative=True)
GIVE = _verb("give gives gave giving", "geben gibt gegeben")
SHOW = _verb("show shows showed showing", "zeigen zeigt gezeigt")
BRING = _verb("bring brings brought bringing", "bringen bringt gebracht")
SEND = _verb("send sends sent sending", "schicken schickt geschickt")

# with a prepositional object, without object
WAIT = _verb("wait waits waited waiting", "warten wartet gewartet")
TALK = _verb("talk talks talked talking", "sprechen spricht gesprochen")
THINK = _verb("think thinks thought thinking", "denken denkt gedacht")
PLAY = _verb("play plays played playing", "spielen spielt gespielt")
SLEEP = _verb("sleep sleeps slept sleeping", "schlafen schläft geschlafen")
WORK = _verb("work works worked working", "arbeiten arbeitet gearbeitet")
SWIM = _verb("swim swims swam swimming", "schwimmen schwimmt geschwommen", sein=True)
SING = _verb("sing sings sang singing", "singen singt gesungen")
DANCE = _verb("dance dances danced dancing", "tanzen tanzt getanzt")
LAUGH = _verb("laugh laughs laughed laughing", "lachen lacht gelacht")
LIVE = _verb("live lives lived living", "wohnen wohnt gewohnt", stative=True)
STAY = _verb("stay stays stayed staying", "bleiben bleibt geblieben", sein=True)
RAIN = _verb("rain rains rained raining", "regnen regnet geregnet")
SNOW = _verb("snow snows snowed snowing", "schneien schneit geschneit")

# of motion
GO = _verb("go goes went going", "gehen geht gegangen", sein=True)
RUN = _verb("run runs ran running", "laufen läuft gelaufen", sein=True)
DRIVE = _verb("drive drives drove driving", "fahren fährt gefahren", sein=True)
COME = _verb("come comes came coming", "kommen kommt gekommen", sein=True)
TRAVEL = _verb("travel travels traveled traveling", "reisen reist gereist", sein=True)

# of position and of putting
STAND = _verb("stand stands stood standing", "stehen steht gestanden")
LIE = _verb("lie lies lay lying", "liegen liegt gelegen")
SIT = _verb("sit sits sat sitting", "sitzen sitzt gesessen")
PUT = _verb("put puts put putting", "stellen stellt gestellt")
LAY = _verb("lay lays laid laying", "legen legt gelegt")
HANG = _verb("hang hangs hung hanging", "hängen hängt gehängt")

# reflexive
HURRY = _verb("hurry hurries hurried hurrying", "beeilen beeilt beeilt", reflexive=True)
REST = _verb("rest rests rested resting", "aus|ruhen ruht ausgeruht", reflexive=True)
SIT_DOWN = _verb("sit sits sat sitting", "setzen setzt gesetzt", particle="down", reflexive=True)


class Modal(NamedTuple):
    """A verb that takes an infinitive: German puts the infinitive last, except for `gern` ("likes to")."""

    en: str
    en_third: str
    en_past: str
    de_first: str
    de_third: str
    de_plural: str
    de_past: str
    full: bool  # an English full verb, with do-support
    gern: bool = False


CAN = Modal("can", "can", "could", "kann", "kann", "können", "konnte", False)
MAY = Modal("may", "may", "", "darf", "darf", "dürfen", "", False)
SHOULD = Modal("should", "should", "", "sollte", "sollte", "sollten", "", False)
WILL = Modal("will", "will", "", "werde", "wird", "werden", "", False)
WANT_TO = Modal("want to", "wants to", "wanted to", "will", "will", "wollen", "wollte", True)
HAVE_TO = Modal("have to", "has to", "had to", "muss", "muss", "müssen", "musste", True)
LIKE_TO = Modal("like to", "likes to", "", "", "", "", "", True, gern=True)
