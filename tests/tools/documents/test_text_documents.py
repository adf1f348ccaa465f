"""PO, XLIFF, TMX, JSON and subtitles: what is translated, and everything else is kept."""

from __future__ import annotations

import contextlib
import gettext
import html
import itertools
import json
from pathlib import Path
from xml.etree import ElementTree

import polib
import pytest
from document_helpers import fill, identity, parse, sources, upper

from transformer_mt.choices import DocumentFormat
from transformer_mt.decoding.segments import Segment
from transformer_mt.tools.documents.document import DocumentError
from transformer_mt.tools.documents.formats import DocumentOptions, parse_document

PO = r'''# A comment
msgid ""
msgstr ""
"Language: \n"
"Content-Type: text/plain; charset=UTF-8\n"

#: file.py:3
#, python-format
msgid "The \"old\" %s\n"
"and a dog\n"
msgstr ""

#, fuzzy
#| msgid "Hell"
msgid "Hello"
msgstr "Heda"

msgid "one file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

msgctxt "menu"
msgid "Open"
msgstr "Öffnen"

msgid "100"
msgstr ""

#~ msgid "Gone"
#~ msgstr ""'''

XLIFF = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file source-language="en" original="a"><body>
  <trans-unit id="1">
    <source>Ein é <g id="1">old <x id="2"/></g> &amp; dog</source>
    <note>a note</note>
    <alt-trans><source>no</source><target>no</target></alt-trans>
  </trans-unit>
  <trans-unit id="2"><source>Done</source><target>Fertig</target></trans-unit>
  <trans-unit id="3"><source>New <![CDATA[& dog]]></source><target state="new"/></trans-unit>
  <trans-unit id="4" translate="no"><source>Kept</source></trans-unit>
</body></file></xliff>
"""

SRT = """1
00:00:01,000 --> 00:00:02,000
<i>The old dog sleeps on the
sofa</i>

2
00:00:03,000 --> 00:00:04,500
- Who?
- {\\an8}The <b>dog</b>!
"""

JSON = '{"name": "The \\"old\\" dog", "n": 1, "list": ["a\\n b ", {"key": "x \\/ y"}, ""], "code" : "42"}\n'
VTT = """WEBVTT - a title

STYLE
::cue { color: red }

NOTE a note --
in two lines

intro
00:02.830 --> 00:05.560 align:start
<v Bob>The old dog <i>sleeps</i> &amp; x on the
<ruby>sofa<rt>couch</rt></ruby></v>

00:06.000 --> 01:00:07.000
- Who?
- The <00:06.500>dog &lt;b&gt;
"""

TMX = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
  <tu><note>a note</note>
    <tuv xml:lang="en-GB"><seg>The <bpt i="1">&lt;b&gt;</bpt>old<ept i="1">&lt;/b&gt;</ept> dog &amp; x</seg></tuv>
    <tuv xml:lang="fr"><seg>Le chien</seg></tuv>
  </tu>
  <tu><tuv xml:lang="en"><seg>Done</seg></tuv><tuv xml:lang="DE"><seg>Fertig</seg></tuv></tu>
  <tu><tuv xml:lang="de"><seg/></tuv><tuv xml:lang="en"><seg>Empty</seg></tuv></tu>
  <tu><tuv xml:lang="fr"><seg>Le chat</seg></tuv></tu>
</body></tmx>
"""
EXAMPLES: list[tuple[DocumentFormat, str]] = [("srt", SRT), ("vtt", VTT), ("json", JSON)]


@pytest.mark.parametrize(("document_format", "text"), EXAMPLES)
def test_documents_are_kept_byte_for_byte_if_nothing_is_translated(document_format: DocumentFormat, text: str) -> None:
    for newline, mark, end in itertools.product(["\n", "\r\n"], ["", "\ufeff"], ["\n", ""]):
        changed = mark + text.rstrip("\n").replace("\n", newline) + end.replace("\n", newline)
        assert fill(parse(changed, document_format), identity) == changed


# --- PO ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["de", "DE", "de_DE", "de-AT", "de_CH.UTF-8", "de@latin", "deu", "ger"])
def test_po_keeps_other_spellings_of_its_language(language: str) -> None:
    text = PO.replace("Language: ", f"Language: {language}")
    assert polib.pofile(fill(parse(text, "po"), upper)).metadata["Language"] == language


@pytest.mark.parametrize("language", ["fr", "fr_CA", "nl", "en", "pt-BR", "zh_Hant", "gsw"])
def test_po_in_another_language_is_refused(language: str) -> None:
    with pytest.raises(DocumentError, match=f"its language is {language}, not de") as error:
        parse(PO.replace("Language: ", f"Language: {language}"), "po")
    assert error.value.line == 4


@pytest.mark.parametrize(
    ("escape", "is_read"),
    [(escape, True) for escape in ("\\\\a", "\\\\\\\\x41", "\\t", '\\"')]
    + [(escape, False) for escape in ("\\a", "\\x41", "\\101", "\\\\\\a", "\\303\\251", "\\?", "\\'")],
)
def test_po_messages_with_escapes_are_translated_or_kept(escape: str, is_read: bool) -> None:
    text = (
        f'msgid "1{escape} dog"\nmsgstr ""\n\nmsgid "{escape} dog"\nmsgid_plural "dogs"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    )
    escaped = f"1{escape} dog".upper().replace("\\T", "\\t")
    translated = fill(parse(text, "po"), upper)
    assert translated.splitlines()[1] == (f'msgstr "{escaped}"' if is_read else 'msgstr ""')
    assert translated.splitlines()[-1] == 'msgstr[1] "DOGS"'


_HEADER = {"Content-Type": "text/plain; charset=UTF-8", "Language": "", "Plural-Forms": "nplurals=2; plural=(n != 1);"}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("is_wrapped", [True, False])
@pytest.mark.parametrize("charset", ["UTF-8", "CHARSET"])
@pytest.mark.parametrize("names", [*itertools.permutations(_HEADER), ["Content-Type"], ["Plural-Forms"]])
def test_po_headers_get_the_language_and_encoding(
    names: list[str], charset: str, is_wrapped: bool, newline: str
) -> None:
    """`xgettext` writes templates with the encoding CHARSET, and with an empty language or none."""
    fields = [f"{name}: {_HEADER[name].replace('UTF-8', charset)}\\n" for name in names]
    strings = f'""{newline}' + newline.join(f'"{each}"' for each in fields) if is_wrapped else f'"{"".join(fields)}"'
    text = f'msgid ""{newline}msgstr {strings}{newline}{newline}msgid "Dog"{newline}msgstr ""{newline}'
    translated = fill(parse(text, "po"), upper)
    found = polib.pofile(translated)
    assert found.metadata == {name: _HEADER[name] for name in names} | {"Language": "de"}
    assert found[0].msgstr == "DOG"
    assert fill(parse(translated, "po"), upper) == translated


@pytest.mark.parametrize("header", ["", 'msgid ""\nmsgstr ""\n\n'])
def test_po_without_a_header_gets_none(header: str) -> None:
    text = header + 'msgid "Dog"\nmsgstr "{}"\n'
    assert fill(parse(text.format(""), "po"), upper) == text.format("DOG")


def test_a_truncated_po_file_is_refused_or_read() -> None:
    lines = PO.splitlines(keepends=True)
    for n in range(len(lines)):
        for text in ("".join(lines[:n]), "".join(lines[n:])):
            with contextlib.suppress(DocumentError):
                polib.pofile(fill(parse(text, "po"), upper) + "\n")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_po_messages_without_a_translation_are_translated(newline: str) -> None:
    translated = fill(parse(PO.replace("\n", newline), "po"), upper)
    before, after = polib.pofile(PO), polib.pofile(translated)
    assert after.metadata["Language"] == "de"
    for old, new in zip(before, after, strict=True):
        assert (old.msgid, old.msgid_plural, old.msgctxt, old.flags, old.comment, old.occurrences) == (
            new.msgid, new.msgid_plural, new.msgctxt, new.flags, new.comment, new.occurrences,
        )  # fmt: skip
    assert [entry.msgstr for entry in after] == ['THE "OLD" %S\nAND A DOG\n', "HELLO", "", "Öffnen", "100", ""]
    assert after[2].msgstr_plural == {0: "ONE FILE", 1: "%D FILES"}


def test_existing_translations_of_a_po_file_are_replaced_by_option() -> None:
    assert 'msgstr "OPEN"' in fill(parse(PO, "po", retranslate=True), upper)
    complete = fill(parse(PO, "po"), upper).replace("#, fuzzy\n", "")
    assert sources(parse(complete, "po")) == []
    assert fill(parse(complete, "po"), upper) == complete


PLURAL_RULES = {
    "en": "nplurals=2; plural=(n != 1);",
    "fr": "nplurals=2; plural=(n > 1);",
    "ja": "nplurals=1; plural=0;",
    "is": "nplurals=2; plural=(n%10!=1 || n%100==11);",
    "lt": "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2);",
    "lv": "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);",
    "ru": "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);",
    "pl": "nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);",
    "sl": "nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);",
    "ga": "nplurals=5; plural=(n==1 ? 0 : n==2 ? 1 : n<7 ? 2 : n<11 ? 3 : 4);",
    "ar": "nplurals=6; plural=(n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5);",
}


@pytest.mark.parametrize("singular", ["a minute", "%(count)s minute"])
@pytest.mark.parametrize("rule", PLURAL_RULES.values(), ids=PLURAL_RULES)
def test_plural_forms_of_many_numbers_say_the_number(rule: str, singular: str, tmp_path: Path) -> None:
    plural = "%(count)s minutes"
    empty = "".join(f'msgstr[{i}] ""\n' for i in range(int(rule[len("nplurals=")])))
    header = f'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: {rule}\\n"\n\n'
    text = f'{header}#, python-format\nmsgid "{singular}"\nmsgid_plural "{plural}"\n{empty}'
    polib.pofile(fill(parse(text, "po"), identity)).save_as_mofile(str(tmp_path / "x.mo"))
    with (tmp_path / "x.mo").open("rb") as file:
        translations = gettext.GNUTranslations(file)
    found = [translations.ngettext(singular, plural, n) for n in range(200)]
    assert all("%(count)s" in form for form in found if found.count(form) > 5)
    assert found[1] == (singular if "count" in singular or found.count(found[1]) < 5 else plural)


@pytest.mark.parametrize(
    "rule", ["", "nplurals=INTEGER; plural=EXPRESSION;", "nplurals=2; plural=n%0;", "x", "plural=("]
)
def test_plural_forms_without_a_rule_are_those_of_english(rule: str) -> None:
    header = f'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: {rule}\\n"\n\n'
    text = f'{header}msgid "one file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    assert polib.pofile(fill(parse(text, "po"), upper))[0].msgstr_plural == {0: "ONE FILE", 1: "%D FILES"}


def test_plural_forms_of_po_in_another_order_keep_their_index() -> None:
    text = 'msgid "one file"\nmsgid_plural "%d files"\nmsgstr[1] ""\nmsgstr[0] ""\n'
    assert polib.pofile(fill(parse(text, "po"), upper))[0].msgstr_plural == {0: "ONE FILE", 1: "%D FILES"}


# --- XLIFF ------------------------------------------------------------------------------------------------------------


def targets(text: str) -> list[str]:
    root = ElementTree.fromstring(text.encode())
    return ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("}target")]


def test_xliff_units_without_a_target_get_one() -> None:
    translated = fill(parse(XLIFF, "xliff"), upper)
    assert targets(translated) == ["EIN É OLD  & DOG", "no", "Fertig", "NEW & DOG"]
    assert '    <target>EIN É <g id="1">OLD <x id="2"/></g> &amp; DOG</target>\n    <note>' in translated
    assert '<file target-language="de" source-language="en"' in translated
    without = translated.replace(' target-language="de"', "").replace('<target state="new">NEW &amp; DOG</target>', "X")
    line = next(line for line in translated.splitlines(keepends=True) if "<target>EIN" in line)
    assert without.replace(line, "") == XLIFF.replace('<target state="new"/>', "X")


_MARKS = '<mrk mtype="seg" mid="1">{}</mrk> <mrk mtype="seg" mid="2">{}</mrk>'


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("", "<target><g id='9'>" + _MARKS.format("ONE<x id='1'/> DOG.", "TWO CATS.") + "</g></target>"),
        ("<target/>", "<target><g id='9'>" + _MARKS.format("ONE<x id='1'/> DOG.", "TWO CATS.") + "</g></target>"),
        ("<target><mrk mtype='seg' mid='2'/></target>", "<target><mrk mtype='seg' mid='2'>TWO CATS.</mrk></target>"),
        (
            f"<target>{_MARKS.format(' ', 'Zwei.')}</target>",
            "<target>" + _MARKS.format("ONE<x id='1'/> DOG.", "Zwei.") + "</target>",
        ),
        (f"<target>{_MARKS.format('Eins.', 'Zwei.')}</target>", f"<target>{_MARKS.format('Eins.', 'Zwei.')}</target>"),
        (
            "<target state='new'><mrk mtype='seg' mid='1'>x</mrk></target>",
            "<target state='new'><g id='9'>" + _MARKS.format("ONE<x id='1'/> DOG.", "TWO CATS.") + "</g></target>",
        ),
    ],
)
def test_each_segment_of_a_segmented_unit_of_xliff_is_translated(target: str, expected: str) -> None:
    source = "<g id='9'>" + _MARKS.format("One<x id='1'/> dog.", "Two cats.") + "</g>"
    text = (
        "<xliff version='1.2'><file source-language='en' target-language='de'><body><trans-unit id='1'>"
        f"<source>One dog. Two cats.</source><seg-source>{source}</seg-source>{target}</trans-unit>"
        "</body></file></xliff>"
    )
    translated = fill(parse(text, "xliff"), upper)
    assert translated == text.replace(f"</seg-source>{target}", f"</seg-source>{expected}")


def test_segments_of_xliff_without_mid_are_translated() -> None:
    text = (
        "<xliff version='1.2'><file><body><trans-unit id='1'><source>One. Two.</source><seg-source>"
        "<mrk mtype='seg'>One.</mrk> <mrk mtype='seg'>Two.</mrk></seg-source></trans-unit></body></file></xliff>"
    )
    assert "<target><mrk mtype='seg'>ONE.</mrk> <mrk mtype='seg'>TWO.</mrk></target>" in fill(
        parse(text, "xliff"), upper
    )


@pytest.mark.parametrize(
    "target", ["<x id='1'/>", "<g id='2'> </g>", "\n  <mrk mtype='x-term'></mrk>", "<bx/><ex/>", "  "]
)
def test_a_target_of_xliff_without_text_is_translated(target: str) -> None:
    text = (
        "<xliff version='2.0' srcLang='en' trgLang='de'><file><unit><segment>"
        f"<source>One dog</source><target>{target}</target></segment></unit></file></xliff>"
    )
    assert fill(parse(text, "xliff"), upper) == text.replace(f"<target>{target}", "<target>ONE DOG")


@pytest.mark.parametrize("version", ["1.2", "2.0"])
@pytest.mark.parametrize("language", ["fr", "fr-FR", "ZH_cn"])
def test_xliff_in_another_language_is_refused(version: str, language: str) -> None:
    names = ("source-language", "target-language") if version == "1.2" else ("srcLang", "trgLang")
    for name, wanted in zip(names, ("en", "de"), strict=True):
        text = f"<xliff version='{version}'\n {name}='{{}}'><file {name}='{{}}'/></xliff>"
        with pytest.raises(DocumentError, match=f"language is {language}, not {wanted}"):
            parse(text.format(language, language), "xliff")
        for other in (wanted.upper(), f"{wanted}-XK", {"en": "eng", "de": "deu_Latn"}[wanted]):
            assert fill(parse(text.format(other, other), "xliff"), upper).count(f"'{other}'") == 2


@pytest.mark.parametrize(
    "text",
    [
        "<xliff version='1.2'><file source-language='en'><body translate='{}'>"
        "<trans-unit><source>a</source></trans-unit><trans-unit translate='{}'><source>b</source></trans-unit>"
        "</body></file></xliff>",
        "<xliff version='2.0'><file><group translate='{}'><unit><segment><source>a</source></segment></unit>"
        "<unit translate='{}'><segment><source>b</source></segment></unit></group></file></xliff>",
    ],
)
def test_the_nearest_value_of_translate_counts_in_xliff(text: str) -> None:
    assert sources(parse(text.format("no", "yes"), "xliff")) == ["b"]
    assert sources(parse(text.format("yes", "no"), "xliff")) == ["a"]
    assert sources(parse(text.format("no", "no"), "xliff")) == []


def test_existing_targets_of_xliff_are_replaced_by_option() -> None:
    assert targets(fill(parse(XLIFF, "xliff", retranslate=True), upper))[2] == "DONE"


def test_xliff_2_segments_are_translated() -> None:
    text = (
        '<xliff version="2.0" srcLang="en" xmlns="urn:oasis:names:tc:xliff:document:2.0"><file id="f"><unit id="1">'
        "<originalData><data id='d'>no</data></originalData><segment><source>See <pc id='1'>the\n dog</pc>"
        "<sc id='2'/> x<ec startRef='2'/></source></segment><ignorable><source>no</source></ignorable>"
        "<segment><source>Done</source><target>Fertig</target></segment></unit></file></xliff>"
    )
    translated = fill(parse(text, "xliff"), upper)
    assert targets(translated) == ["SEE THE DOG X", "Fertig"]
    assert '<xliff trgLang="de" version="2.0"' in translated


def test_codes_of_xliff_at_the_ends_of_a_segment_may_be_in_cdata() -> None:
    opening, closing = '<bpt id="1"><![CDATA[<b>]]></bpt>', '<ept id="1"><![CDATA[</b>]]></ept>'
    text = XLIFF.replace("New <![CDATA[& dog]]>", f"{opening}<![CDATA[A man]]>{closing}")
    translated = fill(parse(text, "xliff"), upper)
    assert targets(translated)[-1] == "<b>A MAN</b>"


@pytest.mark.parametrize("document_format", ["xliff", "tmx"])
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("See <a href='%s'>the <b>dog</b></a>", "SEE <a href='%s'>THE <b>DOG</b></a>"),
        ("<p>One &amp; two <br/> three.</p>\n\n<p>Four&nbsp;five</p>",
         "<p>ONE &amp; TWO <br/> THREE.</p>\n\n<p>FOUR&nbsp;FIVE</p>"),
        ("<img src='%s'> The <b>5</b> dogs <!-- x --> a < b", "<img src='%s'> THE <b>5</b> DOGS <!-- x --> A < B"),
        ("</b>a <b>dog", "</b>A <b>DOG"),
        ("<br class='x'>", "<br class='x'>"),
    ],
)  # fmt: skip
def test_escaped_html_tags_in_units_are_elements(document_format: DocumentFormat, source: str, expected: str) -> None:
    """Exports of content management systems have such units, some of them in CDATA."""
    units = {
        "xliff": "<xliff version='1.2'><file><unit/><trans-unit><source>{}</source></trans-unit></file></xliff>",
        "tmx": "<tmx><tu><tuv lang='en'><seg>{}</seg></tuv></tu></tmx>",
    }
    whole = html.escape(source)
    half = source.index("a")
    mixed = f"{html.escape(source[:half], quote=False)}<![CDATA[{source[half:]}]]>"
    for written in (whole, whole.replace("&lt;", "&#60;"), f"<![CDATA[{source}]]>", mixed):
        document = parse(units[document_format].format(written), document_format)
        root = ElementTree.fromstring(fill(document, upper))
        assert ["".join(node.itertext()) for node in root.iter() if node.tag in ("target", "seg")][-1] == expected
        assert not any("%s" in segment.source.plain_text for segment in document.segments)
        assert root.find(".//tuv[2]/seg/*") is None and root.find(".//target/*") is None


@pytest.mark.parametrize(
    "unit", ["<trans-unit xml:space='preserve'>{}", "<trans-unit>{}", "<trans-unit xml:space='default'>{}"]
)
@pytest.mark.parametrize("file", ["<file>", "<file xml:space='preserve'>"])
@pytest.mark.parametrize(
    ("source", "kept", "merged"),
    [
        ("One.\n  two\r\nthree", ["One.", "two", "three"], ["One. two three"]),
        ("One.&#10;two&#xA;&#13;&#10;three", ["One.", "two", "three"], ["One.", "two", "three"]),
        ("One\n\ntwo\n", ["One", "two"], ["One", "two"]),
        ("<![CDATA[<p>One\ntwo</p>\n \n<p>three</p>]]>", ["One", "two", "three"], ["One two", "three"]),
        ("One <g id='1'>two\n<mrk>three</mrk></g>", ["One two three"], ["One two three"]),
    ],
)
def test_line_breaks_that_are_kept_divide_units(
    source: str, kept: list[str], merged: list[str], file: str, unit: str
) -> None:
    text = f"<xliff version='1.2'>{file}{unit.format(f'<source>{source}</source>')}</trans-unit></file></xliff>"
    is_kept = "preserve" in unit or ("preserve" in file and "default" not in unit)
    document = parse(text, "xliff")
    assert [segment.source.plain_text.strip() for segment in document.segments] == (kept if is_kept else merged)
    root = ElementTree.fromstring(fill(document, upper))
    before, after = ("".join(next(root.iter(tag)).itertext()) for tag in ("source", "target"))
    expected = before.upper().replace("P>", "p>")
    assert after == expected if is_kept and "<g" not in source else after.split() == expected.split()
    assert document.line_numbers() == sorted(document.line_numbers())


# --- SRT --------------------------------------------------------------------------------------------------------------


def test_subtitles_keep_their_times_and_number_of_lines() -> None:
    assert sources(parse(SRT, "srt")) == ["The old dog sleeps on the sofa", "Who?", "The <b>dog</b>!"]
    translated = fill(parse(SRT, "srt"), upper)
    assert "<i>THE OLD DOG SLEEPS\nON THE SOFA</i>\n" in translated
    assert "- WHO?\n- {\\an8}THE <b>DOG</b>!\n" in translated
    times = [line for line in SRT.split("\n") if "-->" in line or not line]
    assert [line for line in translated.split("\n") if "-->" in line or not line] == times


def test_a_translation_of_srt_never_makes_a_time() -> None:
    document = parse("1\n00:00:01,000 --> 00:00:02,000\nA dog\n", "srt")
    filled = document.fill([Segment(("1 --> 2",))])
    assert filled.count("-->") == 1
    parse(filled, "srt")


def test_a_translation_of_one_word_has_one_line() -> None:
    document = parse(SRT.replace("\n", "\r\n"), "srt")
    first = document.segments[0]
    filled = document.fill([Segment(("Schläft",)), *(segment.source for segment in document.segments[1:])])
    assert "<i>Schläft</i>\r\n\r\n2\r\n" in filled and first.source.elements == ()


def test_styles_of_subtitles_are_pairs() -> None:
    text = SRT.replace("<b>dog</b>", "{\\b1}dog{\\b0} <font color=red>x</font>")
    segment = parse(text, "srt").segments[-1]
    assert [element.partner for element in segment.source.elements] == [1, 0, 3, 2]


def test_dashes_of_dialogues_may_follow_tags() -> None:
    text = "1\n00:00:01,000 --> 00:00:02,000\n{\\an8}- The dog.\n<i>- Who?</i>\n"
    assert fill(parse(text, "srt"), upper) == text.replace("The dog", "THE DOG").replace("Who", "WHO")


# --- WebVTT -----------------------------------------------------------------------------------------------------------


def test_only_the_text_of_cues_of_webvtt_is_translated() -> None:
    assert sources(parse(VTT, "vtt")) == [
        "The old dog <i>sleeps</i> & x on the <ruby>sofa<rt>couch</rt></ruby>",
        "Who?", "The <00:06.500>dog &lt;b&gt;",
    ]  # fmt: skip
    translated = fill(parse(VTT, "vtt"), upper)
    assert "\n<v Bob>THE OLD DOG <i>SLEEPS</i>\n&amp; X ON THE <ruby>SOFA<rt>couch</rt></ruby></v>\n\n" in translated
    assert translated.endswith("\n- WHO?\n- THE <00:06.500>DOG &lt;b&gt;\n")
    assert translated.partition("<v Bob>")[0] == VTT.partition("<v Bob>")[0]


@pytest.mark.parametrize("space", [" ", "\t", "  "])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("cue", ["{}\nThe<00:01.500><c> dog</c>", "A dog\n{}", "A dog\n{}\nsleeps", "- A\n{}\n- B"])
def test_lines_of_white_space_do_not_end_a_cue_of_webvtt(cue: str, newline: str, space: str) -> None:
    """Automatic captions have such lines."""
    text = f"WEBVTT\n\n00:01.000 --> 00:02.000\n{cue.format(space)}\n\nNOTE x\n\n".replace("\n", newline)
    written = cue.format(space).upper().replace("<C>", "<c>").replace("</C>", "</c>")
    translated = fill(parse(text, "vtt"), upper)
    assert " ".join(translated.split()) == f"WEBVTT 00:01.000 --> 00:02.000 {' '.join(written.split())} NOTE x"
    assert translated.count(newline) <= text.count(newline)
    assert fill(parse(text, "vtt"), identity) == text


# --- TMX --------------------------------------------------------------------------------------------------------------


def test_units_of_tmx_without_the_target_language_get_a_segment() -> None:
    translated = fill(parse(TMX, "tmx"), upper)
    new = '<tuv xml:lang="de"><seg>THE <bpt i="1">&lt;b&gt;</bpt>OLD<ept i="1">&lt;/b&gt;</ept> DOG &amp; X</seg></tuv>'
    french = '<tuv xml:lang="fr"><seg>Le chien</seg></tuv>'
    expected = TMX.replace(french, f"{french}\n    {new}").replace("<seg/>", "<seg>EMPTY</seg>")
    assert translated == expected
    assert fill(parse(translated, "tmx"), upper) == translated
    assert "<seg>DONE</seg>" in fill(parse(TMX, "tmx", retranslate=True), upper)


def test_variants_of_a_language_are_different_languages_in_tmx() -> None:
    text = TMX.replace('"en-GB"', '"en-US"').replace(
        '<tuv xml:lang="fr"><seg>Le chien', '<tuv xml:lang="en-GB"><seg>A dog'
    )
    done = fill(parse_document(text, "tmx", DocumentOptions("en-GB", "en", retranslate=True)), upper)
    assert '<tuv xml:lang="en-GB"><seg>THE <bpt i="1">' in done
    assert '<tuv xml:lang="en-US"><seg>The <bpt i="1">' in done


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_values_of_json_are_translated_and_names_are_not() -> None:
    translated = fill(parse(JSON, "json"), upper)
    assert json.loads(translated) == {
        "name": 'THE "OLD" DOG', "n": 1, "list": ["A\n B ", {"key": "X / Y"}, ""], "code": "42",
    }  # fmt: skip
    assert sources(parse(JSON, "json")) == ['The "old" dog', "a", "b", "x / y"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{n, plural, one {# dog} other {# dogs}}", "{n, plural, one {# DOG} other {# DOGS}}"),
        ("{g, select, a {{n, plural, =1 {x} other {y}}} b {z {t} {n, plural, other {q}}}}",
         "{g, select, a {{n, plural, =1 {X} other {Y}}} b {Z {T} {N, PLURAL, OTHER {Q}}}}"),
        ("See {n, plural,\\n other {# dogs}}", "See {n, plural,\\n other {# dogs}}"),
    ],
)  # fmt: skip
def test_only_branches_of_a_message_of_icu_are_translated(value: str, expected: str) -> None:
    assert fill(parse(f'{{"a": "{value}"}}', "json"), upper) == f'{{"a": "{expected}"}}'


def test_an_integer_of_json_may_have_any_number_of_digits() -> None:
    text = f'{{"n": {"9" * 5000}, "a": "dog"}}'
    assert fill(parse(text, "json"), upper) == text.replace("dog", "DOG")


def test_values_of_excluded_keys_are_kept() -> None:
    text = '{"id": "a b", "text": "dog", "meta": {"id": ["x", {"text": "y"}], "c": "cat"}, "d": ["id", "e"]}'
    assert sources(parse(text, "json", exclude_keys=["id"])) == ["dog", "cat", "id", "e"]
    assert sources(parse(text, "json", exclude_keys=["meta", "d"])) == ["a b", "dog"]


def test_metadata_of_arb_is_kept_and_forms_of_a_plural_are_segments() -> None:
    text = '{"@@locale": "en", "n": "{x|y} dog | {n} dogs", "@n": {"description": "d"}}'
    document = parse(text, "json")
    assert sources(document) == ["{x|y} dog", "{n} dogs"]
    assert fill(document, identity) == text.replace('"en"', '"de"')


def test_json_in_ascii_stays_ascii() -> None:
    assert fill(parse(r'{"a": "caf\u00e9"}', "json"), upper) == r'{"a": "CAF\u00c9"}'
    assert fill(parse('{"a": "café"}', "json"), upper) == '{"a": "CAFÉ"}'


def test_a_json_string_with_half_a_character_is_not_translated() -> None:
    text = r'{"a": "\ud800 A man", "b": "\ud83d\ude00 dog"}'
    assert fill(parse(text, "json"), upper) == text.replace("dog", "DOG")


# --- wrong input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document_format", "text", "line", "message"),
    [
        ("po", 'msgid "a"\nmsgstr "b\n', 2, "not a line of a PO file"),
        ("po", 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=latin1\\n"\n', 3, "encoding latin1"),
        ("po", 'msgid ""\n', 1, "do not match"),
        ("po", '#, fuzzy\nmsgid ""\nmsgid_plural "a"\n', 1, "do not match"),
        ("xliff", "<xliff>\n<a></xliff>", 2, "not XML: mismatched tag"),
        ("xliff", '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>', 1, "DOCTYPE"),
        ("srt", "1\n00:00:01,000 --> 00:00\nhello\n", 2, "expected a time"),
        ("vtt", "WEBVTT\n\n00:00 --> 1\nhello\n", 3, "expected a time"),
        ("tmx", "<tmx><tu><tuv xml:lang='fr'><seg>x</seg></tuv></tu></tmx>", 1, "no segment is in en"),
        ("json", '{"a": 1,\n}', 2, "not JSON"),
        ("json", "[" * 100_000, 1, "nested too deeply"),
    ],
)
def test_broken_documents_are_refused_with_a_line(
    document_format: DocumentFormat, text: str, line: int, message: str
) -> None:
    with pytest.raises(DocumentError, match=message) as error:
        parse(text, document_format)
    assert error.value.line == line


# --- languages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document_format", "content", "expected"),
    [
        ("html", "<html><p>x", "lang='{tag}'"),
        ("html", "<html lang=en xml:lang='en'><p>x", "<html lang={tag} xml:lang='{tag}'>"),
        ("xliff", "<xliff version='1.2'><file source-language='en'><body/></file></xliff>", "target-language='{tag}'"),
        ("xliff", "<xliff version='2.0' srcLang='en'><file/></xliff>", "trgLang='{tag}'"),
        ("tmx", "<tmx><tu><tuv xml:lang='en'><seg>x</seg></tuv></tu></tmx>", "xml:lang='{tag}'"),
        ("po", 'msgid ""\nmsgstr ""\n"Language: \\n"\n', "'Language: {locale}\\n'"),
        ("json", '{"@@locale": "en", "a": "x"}', "'@@locale': '{locale}'"),
    ],
)
@pytest.mark.parametrize("code", ["pt_BR", "pt-BR", "zh-Hant-HK", "zh_Hant_HK", "de"])
def test_each_format_spells_languages_in_its_own_way(
    document_format: DocumentFormat, content: str, expected: str, code: str
) -> None:
    written = fill(parse_document(content, document_format, DocumentOptions(code, "en")), upper)
    tag, locale = code.replace("_", "-"), code.replace("-", "_")
    assert expected.replace("{tag}", tag).replace("{locale}", locale) in written.replace('"', "'")
