"""Stages that change a text before the model translates it, and its translations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import Constraint
from transformer_mt.decoding.segments import Segment, Translation


class StageState:
    """What a stage knows about one text. The default methods change nothing."""

    alignment_refusal = ""  # the message for a request of alignments that the stage needs itself

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        """The text for the next stage, or for the model after the last one."""

    def prepare_prefix(self, prefix: str) -> str:
        """Return the prefix of a translation."""
        return prefix

    def needs_alignment(self) -> bool:
        """Return whether `finish` needs the word alignment of the translations."""
        return False

    def constraint(self, n_tokens: int, line_number: int) -> Constraint | None:
        """Return what each translation must contain, in at most `n_tokens` tokens; None: nothing."""
        return None

    def finish(self, translation: Translation) -> Translation:
        """Return the final translation of the text."""
        return translation


class TextStage:
    """Changes texts before their translation, and the translations. It is created for one set of options."""

    def read(self, line: Segment) -> Segment:
        """Return a line of the input as the segment that this stage can divide and change."""
        return line

    def prepare(self, segment: Segment) -> StageState:
        """Return the state of a text, or of a part of one. `read` has been called for its line."""
        return StageState(segment)


MakeStages = Callable[[DecodingConfig, TokenizerPair], Sequence[TextStage]]
"""Returns the stages for some options, in the order in which texts go through them."""


@dataclass(frozen=True)
class PreparedText:
    """A text for the model, and the states of the stages that it went through."""

    sentence: str
    states: Sequence[StageState]

    @classmethod
    def make(cls, segment: Segment, stages: Sequence[TextStage]) -> PreparedText:
        """Send a text through the stages."""
        states: list[StageState] = []
        for stage in stages:
            states.append(stage.prepare(segment))
            segment = states[-1].segment
        return cls(segment.surface, states)

    def prepare_prefix(self, prefix: str) -> str:
        """Send the prefix of a translation through the stages."""
        for state in self.states:
            prefix = state.prepare_prefix(prefix)
        return prefix

    def constraint(self, n_tokens: int, line_number: int) -> Constraint | None:
        """Return what each translation must contain. At most one stage constrains a text."""
        found = (state.constraint(n_tokens, line_number) for state in self.states)
        return next((each for each in found if each is not None), None)

    def find_alignment_user(self) -> StageState | None:
        """Return the state that needs the word alignment, if one does."""
        return next((state for state in self.states if state.needs_alignment()), None)

    def finish(self, translation: Translation) -> Translation:
        """Send a translation back through the stages."""
        for state in reversed(self.states):
            translation = state.finish(translation)
        return translation
