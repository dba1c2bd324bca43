"""What the site shows that no page holds: the help of every command, the model cards, the code of the examples.

In the repository the pages are read as they are, so links lead to files; for the site they are made into pages.
"""

import io
import re
from contextlib import redirect_stdout, suppress
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
CARDS = ROOT / "src/lpa_cwm/weights"
CARD = re.compile(r"\]\((?:\.\./)+src/lpa_cwm/weights/([\w-]+\.md)\)")
EXAMPLE = re.compile(r"^\[`?examples/([\w]+\.py)`?\]\(.*\)$", re.MULTILINE)
HELP = "<!-- help of every command -->"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each model card."""
    for card in sorted(CARDS.glob("*.md")):
        files.append(File.generated(config, f"cards/{card.name}", content=card.read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to cards into links to their pages, links to examples into code, and the mark into help."""
    up = "../" * (len(PurePosixPath(page.file.src_uri).parts) - 1)
    markdown = CARD.sub(lambda found: f"]({up}cards/{found[1]})", markdown)
    markdown = EXAMPLE.sub(lambda found: listing(found[1]), markdown)
    return markdown.replace(HELP, "\n".join(help_of(words) for words in verbs())) if HELP in markdown else markdown


def listing(name: str) -> str:
    """An example as a code block with its name."""
    return f'```python title="examples/{name}"\n{(ROOT / "examples" / name).read_text()}```'


def verbs() -> list[list[str]]:
    """The words of every command that has help of its own."""
    from lpa_cwm.cli.main import COMMANDS

    return [name.split() for name in COMMANDS]


def help_of(words: list[str]) -> str:
    """What `--help` prints, under a heading."""
    from lpa_cwm.cli.main import parse

    shown = io.StringIO()
    with redirect_stdout(shown), suppress(SystemExit):
        parse([*words, "--help"])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue())
    return f"\n## {' '.join(words)}\n\n```text\n{plain.strip()}\n```\n"
