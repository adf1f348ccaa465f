"""Machine translation: a Transformer trained from scratch from one YAML file, and translation with it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator

__version__ = "0.1.0"
__all__ = ["Translator", "__version__"]


def __getattr__(name: str) -> object:
    """`Translator` brings torch along, so it is imported when it is first asked for."""
    if name == "Translator":
        from transformer_mt.decoding.translator import Translator

        return Translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
