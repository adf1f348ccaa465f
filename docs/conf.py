"""Configuration of the documentation site. `make docs` builds it."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from transformer_mt import __version__

project = "transformer-mt"
author = "The transformer-mt authors"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]  # $..$ and $$..$$, as on the repository host
myst_heading_anchors = 3  # page.md#heading, as on the repository host
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_math_renderer = "mathml"


def link_files(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Make links to files of the repository downloads of the site, also those to Markdown files."""
    source[0] = re.sub(r"\]\((?=\.\./)", "](path:", source[0])


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Turn each list of links on the front page into a group of the sidebar."""
    if page != "index":
        return
    for caption, group in re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", source[0], re.MULTILINE):
        pages = re.findall(r"^- \[.+?\]\(([\w-]+)\.md\)", group, re.MULTILINE)
        if pages:
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"


def write_inline_math(self: HTML5Translator, node: nodes.math) -> None:
    """Write a formula of a line as MathML, which browsers show without a script."""
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def write_display_math(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a displayed formula as MathML."""
    self.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Connect the links, the navigation and the formulas."""
    app.connect("source-read", link_files)
    app.connect("source-read", add_navigation)
    app.add_html_math_renderer("mathml", (write_inline_math, None), (write_display_math, None))
