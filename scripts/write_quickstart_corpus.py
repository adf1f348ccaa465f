"""Write the built-in quickstart corpus, transformer_mt/data/quickstart.tsv.gz, after its grammar has changed."""

from __future__ import annotations

import gzip

from quickstart_corpus.corpus import generate_splits
from quickstart_corpus.morphology import Text

from transformer_mt.data.sources import QUICKSTART_FILE


def to_tsv(splits: dict[str, list[Text]]) -> str:
    """Return the uncompressed file: one line `split <TAB> English <TAB> German` per pair, split after split."""
    return "".join(f"{split}\t{text.en}\t{text.de}\n" for split, texts in splits.items() for text in texts)


if __name__ == "__main__":
    content = to_tsv(generate_splits()).encode()
    QUICKSTART_FILE.write_bytes(gzip.compress(content, mtime=0))  # no time stamp: repeatable bytes
