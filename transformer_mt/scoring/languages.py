"""What a language means for the metrics: its words, and what does not part them."""

from __future__ import annotations

# 13a splits at spaces, which these languages do not put between words. The mecab tokenisers need dictionaries that
# may not be there, and a score must not depend on that: so the default for the others is characters.
BLEU_TOKENIZERS: dict[str, str] = {"zh": "zh"} | dict.fromkeys(["ja", "ko", "th", "lo", "km", "my", "bo"], "char")
TER_OF_CHARACTERS = ("zh", "ja")  # languages in which TER takes characters for words
TER_OF_NO_WORDS = ("th", "lo", "km", "my", "bo")  # without spaces, and in scripts that TER does not cut either


def primary_language(code: str) -> str:
    """`zh` of zh-Hant-HK, ZH or zh_TW."""
    return code.lower().replace("_", "-").partition("-")[0]
