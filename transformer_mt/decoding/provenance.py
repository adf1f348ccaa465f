"""Provenance of a loaded model."""

from __future__ import annotations

from dataclasses import dataclass

from transformer_mt.decoding.translator import Translator


@dataclass(frozen=True)
class ModelProvenance:
    """Identity of a loaded model, and facts about its training data."""

    identity: dict[str, str]
    """Names and checksums. Partial output is resumed only by a model with the same identity."""
    src_lang: str
    tgt_lang: str
    max_length: int
    """Longest training sequence in tokens, including EOS."""

    @classmethod
    def of_translator(cls, translator: Translator) -> ModelProvenance:
        """Describe the loaded checkpoints and the precision of the matrix products. The languages are of the tag."""
        members, data, tag = translator.members, translator.members[0].data, translator.config.tag
        is_tag_missing = tag is None and data.needs_tag  # the translation will be refused
        src_lang, tgt_lang = (data.src_lang, data.tgt_lang) if is_tag_missing else data.languages_of(tag)
        identity = {
            "run": ", ".join(member.folder.path.resolve().name for member in members),
            "checkpoint": ", ".join([*(f"{one.step} ({one.weights_hash})" for one in members), translator.precision]),
        }
        return cls(identity, src_lang, tgt_lang, min(member.data.max_length for member in members))
