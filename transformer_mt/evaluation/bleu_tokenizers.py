"""What the target language changes in the metrics: BLEU's tokeniser, and what TER counts as a word."""

from __future__ import annotations

# 13a splits at spaces, which these languages do not put between words. The mecab tokenisers need dictionaries that
# may not be there, and a score must not depend on that: so the default for the others is characters.
BLEU_TOKENIZERS: dict[str, str] = {"zh": "zh"} | dict.fromkeys(["ja", "ko", "th", "lo", "km", "my", "bo"], "char")
TER_OF_CHARACTERS = ("zh", "ja")  # languages in which TER takes characters for words
TER_OF_NO_WORDS = ("th", "lo", "km", "my", "bo")  # without spaces, and in scripts that TER does not cut either
