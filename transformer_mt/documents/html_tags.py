"""Kinds of HTML tags: inline or block, and those whose content is not translated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum, auto

from transformer_mt.data.markup.protection import VOID_TAGS

_INLINE_TAGS = (
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd label mark math nobr output q "
    "rp rt ruby s samp small span strike strong sub sup svg time tt u var wbr"
)
INLINE = frozenset(_INLINE_TAGS.split())
"""Tags inside of a sentence. All others end a segment, also line breaks."""
_UNTRANSLATED_TAGS = "code iframe kbd math noembed noframes pre samp script style svg template textarea tt var xmp"
UNTRANSLATED = frozenset(_UNTRANSLATED_TAGS.split())
"""Tags whose content is not translated."""
_BLOCKS_THAT_END_P_TAGS = (
    "address article aside blockquote details div dl fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header "
    "hr main menu nav ol p pre section table ul"
)
_BLOCKS_THAT_END_P = frozenset(_BLOCKS_THAT_END_P_TAGS.split())
_ENDED_BY: Mapping[str, frozenset[str]] = {
    "p": _BLOCKS_THAT_END_P,
    "li": frozenset({"li"}),
    "dt": frozenset({"dt", "dd"}),
    "dd": frozenset({"dt", "dd"}),
    "td": frozenset({"td", "th", "tr", "tbody", "tfoot"}),
    "th": frozenset({"td", "th", "tr", "tbody", "tfoot"}),
    "tr": frozenset({"tr", "tbody", "tfoot"}),
    "option": frozenset({"option", "optgroup"}),
}
"""Opening tags that end an HTML element whose closing tag is left out."""


def is_untranslated(tag: str, attributes: Mapping[str, str | None]) -> bool:
    """Return whether the content of an HTML element is not translated."""
    translate = attributes.get("translate")
    classes = (attributes.get("class") or "").split()
    is_marked = "notranslate" in classes or (translate is not None and translate.strip().lower() == "no")
    return tag in UNTRANSLATED or is_marked


class End(Enum):
    """Where an HTML element ends."""

    LATER = auto()
    BEFORE = auto()  # before this tag, as its own closing tag is missing
    AFTER = auto()  # after this tag


class OpenHtmlElement:
    """Finds the end of an HTML element by the tags inside it."""

    def __init__(self, tag: str, start: int) -> None:
        """`start` is the offset of its opening tag."""
        self.tag, self.start = tag, start
        self._open = [tag]
        self._counts = Counter(self._open)

    def read_opening(self, tag: str, is_closed: bool) -> End:
        """Read the next opening tag. `is_closed`: it has no content."""
        if len(self._open) == 1 and tag in _ENDED_BY.get(self.tag, ()):
            return End.BEFORE
        if not is_closed and tag not in VOID_TAGS:
            self._open.append(tag)
            self._counts[tag] += 1
        return End.LATER

    def read_closing(self, tag: str) -> End:
        """Read the next closing tag. That of an enclosing block ends the HTML element, too."""
        if not self._counts[tag]:
            return End.LATER if tag in INLINE or tag in VOID_TAGS else End.BEFORE
        while True:
            last = self._open.pop()
            self._counts[last] -= 1
            if last == tag:
                return End.LATER if self._open else End.AFTER
