"""`tmt explain`: show how a sentence is translated, as text, JSON or an HTML page."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from transformer_mt import __version__
from transformer_mt.cli.line_input import decode_argument
from transformer_mt.cli.line_output import check_output
from transformer_mt.cli.options import load_translator
from transformer_mt.cli.table import print_text
from transformer_mt.errors import UserError
from transformer_mt.system.files import write_text
from transformer_mt.system.log import log

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator


def run(args: argparse.Namespace) -> None:
    """Run `tmt explain`."""
    text = decode_argument(args.text)
    reference = None if args.reference is None else decode_argument(args.reference)
    try:
        check_output(args.html)
    except UserError as error:
        raise UserError(f"--html {error}") from None
    from transformer_mt.tools.analysis.explanation import explain
    from transformer_mt.tools.analysis.explanation_page import find_likely_reasons

    translator = load_translator(args, args.run).with_options({"sample": False})  # sampling has no beams
    explanation = explain(translator, text, reference)
    reasons = find_likely_reasons(translator, explanation)
    if args.json:
        header = {"tmt": __version__, **_identity(translator), "decoding": translator.config.output_options()}
        print(json.dumps({**header, **asdict(explanation), "likely_reasons": reasons}, ensure_ascii=False))
    else:
        from transformer_mt.cli.explanation_text import format_explanation

        print_text(*format_explanation(explanation, reasons))
    sys.stdout.flush()
    if args.html is not None:
        from transformer_mt.tools.analysis.explanation_page import render_html

        subtitle = ", ".join(f"{name} {value}" for name, value in _identity(translator).items())
        try:
            write_text(args.html, render_html(explanation, reasons, f"{subtitle}, {translator.config.method}"))
        except OSError as error:
            raise UserError(f"--html {args.html}: cannot be written: {error.strerror}") from None
        (log if args.json else print_text)(f"\nthe page is {args.html}")


def _identity(translator: Translator) -> dict[str, object]:
    (member,) = translator.members
    return {"run": str(member.folder.path), "step": member.step}
