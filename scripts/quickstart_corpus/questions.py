"""Yes/no questions, and questions with a question word, whose German form shows case, gender and direction."""

from . import lexicon, valency, verbs
from .actions import action, activity, transport
from .clause import Clause, main_clause, question
from .dice import Dice, weighted
from .morphology import EMPTY, HOW_MANY, ME, WE, WHAT, WHICH, WHO, Nominal, NounPhrase, Pairs, Text, is_human
from .phrases import human, noun_phrase
from .states import state
from .tenses import add_time, remove_time

_OF_THINGS = tuple(entry for entry in valency.TRANSITIVE if not is_human(entry.objects[0]))
_OF_PEOPLE = tuple(entry.verb for entry in valency.TRANSITIVE if is_human(entry.objects[0]))
_FINDABLE = lexicon.nouns("key ball dog cat station church museum hospital book hat coat suitcase bicycle")


def yes_no(dice: Dice) -> Text:
    """ "Is the teacher reading a book?": German puts the finite verb first."""
    if dice.chance(0.3):
        return question(state(dice)._replace(negated=False, time=None))
    return question(_add_time(dice, action(dice, _somebody(dice))))


def _add_time(dice: Dice, clause: Clause) -> Clause:
    """Add tense and time to the clause of a question, which is not negated."""
    clause = add_time(dice, clause, embedded=True)._replace(negated=False)
    return clause._replace(time=None) if clause.time == lexicon.NEVER else clause


def _somebody(dice: Dice) -> Nominal:
    subject = human(dice)
    return WE if subject == ME else subject  # nobody asks about their own action


def _wh_question(word: Text, clause: Clause, pairs: Pairs = ()) -> Text:
    rest = question(clause)
    return Text(f"{word.en} {rest.en}", f"{word.de} {rest.de}", pairs + rest.pairs)


def who(dice: Dice) -> Text:
    return main_clause(add_time(dice, action(dice, WHO), embedded=True))


def whom(dice: Dice) -> Text:
    """ "Whom" is wen or wem: the verb governs the case."""
    if dice.chance(0.15):
        thing = noun_phrase(dice, dice.pick(lexicon.nouns("dog car house book key")), adjective=0.2, definite=True)
        return _wh_question(Text(WHO.en_object, WHO.dative), Clause(thing._replace(possessor=None), verbs.BELONG))
    governs_dative = dice.chance(0.4)
    verb = dice.pick(valency.DATIVE if governs_dative else _OF_PEOPLE)
    word = Text(WHO.en_object, WHO.dative if governs_dative else WHO.accusative)
    return _wh_question(word, _add_time(dice, Clause(_somebody(dice), verb)))


def what(dice: Dice) -> Text:
    clause = Clause(_somebody(dice), dice.pick(_OF_THINGS).verb)
    return _wh_question(Text(WHAT.en, WHAT.accusative), _add_time(dice, clause))


def which(dice: Dice) -> Text:
    """ "Which book", "how many books": welch- agrees like the article."""
    entry = dice.pick(_OF_THINGS)
    noun = dice.pick(entry.objects)
    many = bool(noun.en_plural) and dice.chance(0.5)
    asked = NounPhrase(noun, HOW_MANY if many and dice.chance(0.75) else WHICH, many)
    word = Text(asked.en, asked.de("acc"))
    clause = _add_time(dice, Clause(_somebody(dice), entry.verb))
    return _wh_question(word, clause, ((entry.verb.lemma, noun.en),))


def where(dice: Dice) -> Text:
    """ "Where" is wo for a place, wohin for a direction."""
    return _wh_question(*whereabouts(dice))


def whereabouts(dice: Dice) -> tuple[Text, Clause]:
    if dice.chance(0.45):
        verb = dice.pick((verbs.GO, verbs.RUN, verbs.DRIVE, verbs.TRAVEL))
        return Text("where", "wohin"), _add_time(dice, Clause(_somebody(dice), verb))
    if dice.chance(0.5):
        return Text("where", "wo"), Clause(noun_phrase(dice, dice.pick(_FINDABLE), definite=True), verbs.BE)
    clause = activity(dice, _somebody(dice))._replace(place=EMPTY, manner=None)
    return Text("where", "wo"), _add_time(dice, clause)


def when_or_why(dice: Dice) -> Text:
    return _wh_question(*occasion(dice))


def occasion(dice: Dice) -> tuple[Text, Clause]:
    if dice.chance(0.5):
        clause = transport(dice) if dice.chance(0.3) else action(dice, _somebody(dice))
        return Text("when", "wann"), remove_time(_add_time(dice, clause))
    return Text("why", "warum"), add_time(dice, action(dice, _somebody(dice)), embedded=True)._replace(negated=False)


QUESTIONS = weighted((yes_no, 50), (who, 12), (whom, 12), (what, 8), (which, 10), (where, 9), (when_or_why, 9))
