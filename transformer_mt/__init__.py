"""Train a Transformer for machine translation from one YAML file, and translate with it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator

__version__ = "0.2.0"
__all__ = ["Translator", "__version__"]


def __getattr__(name: str) -> object:
    """Import `Translator` on first access, because it imports torch."""
    if name == "Translator":
        from transformer_mt.decoding.translator import Translator

        return Translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
