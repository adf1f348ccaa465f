"""Train a Transformer for machine translation from one YAML file, and translate with it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.flows.translation import LoadOptions, load_translator

__version__ = "0.3.0"
__all__ = ["LoadOptions", "Translator", "__version__", "load_translator"]


def __getattr__(name: str) -> object:
    """Import what is public on first access, because it imports torch."""
    if name == "Translator":
        from transformer_mt.decoding.translator import Translator

        return Translator
    if name in ("LoadOptions", "load_translator"):
        from transformer_mt.flows import translation

        return getattr(translation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
