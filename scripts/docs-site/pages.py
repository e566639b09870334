"""The pages of the site that are not in docs/: those of the top level, and lists that the code itself has.

MkDocs calls the functions whose names begin with `on_`.
"""

from __future__ import annotations

import argparse
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

import logfs
from logfs.cli import whole_parser
from logfs.setting import BROKER_SETTINGS, TOPIC_SETTINGS, Setting

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# scripts/setup puts it there.
MERMAID = Path(sys.prefix, "share/mermaid/nicegui/elements/mermaid/dist")

_SETTINGS = """\
# Settings

Names, types, ranges and defaults are Kafka's ([kafka-storage.md](kafka-storage.md#11-settings)). A setting whose name
begins with `logfs.` is of logfs alone. `logfs config` shows and changes settings, and so do the files in `config/` of
a mount ([filesystem.md](filesystem.md#changing)).

## Of topics

A topic without a value of its own has that of the store, which is set under one of the synonyms. Of several synonyms
that are set, the first one is used.
"""

# The first heading of each page, by the name of its file.
_titles: dict[str, str] = {}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and the files of the theme."""
    pages = {
        "index.md": _readme("logfs", "See it work", "A log of your own", "Read on"),
        "without-a-mount.md": _readme("Without a mount"),
        "contributing.md": _at_top(ROOT.joinpath("CONTRIBUTING.md").read_text()),
        "security.md": _at_top(ROOT.joinpath("SECURITY.md").read_text()),
        "reference.md": HERE.joinpath("reference.md").read_text(),
        "commands.md": commands(),
        "settings.md": settings(),
        "api.md": api(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for path in HERE.joinpath("assets").iterdir():
        files.append(File.generated(config, f"assets/{path.name}", abs_src_path=str(path)))
    for path in MERMAID.glob("*.js"):
        files.append(File.generated(config, f"assets/mermaid/{path.name}", abs_src_path=str(path)))
    for page in files.documentation_pages():
        _titles[page.src_uri] = page.content_string.partition("\n")[0].removeprefix("# ")
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Give links whose text is the name of a page, as in a git forge, the title of this page as text."""

    def titled(link: re.Match[str]) -> str:
        return f"[{_titles.get(link[1].lower(), link[1])}]"

    return re.sub(r"\[(?:docs/)?([\w-]+\.md)\](?=\()", titled, markdown)


def on_page_content(html: str, **_: object) -> str:
    """Let long names in tables, such as those of metrics, break after an underscore."""
    return re.sub(
        r"(?<=<td><code>)\w+(?=</code></td>)", lambda name: name[0].replace("_", "_<wbr>"), html
    )


def _readme(*headings: str) -> str:
    """Return sections of the README as a page; the first of them has its title."""
    sections = re.split(
        r"^##? (?=.*\n)", ROOT.joinpath("README.md").read_text(), flags=re.MULTILINE
    )
    texts = {text.partition("\n")[0]: text for text in sections}
    return _at_top("# " + "## ".join(texts[heading] for heading in headings))


def _at_top(text: str) -> str:
    """Return a page of the top level with its links as they are in docs/."""
    text = text.replace("](docs/", "](")
    for name in ("CONTRIBUTING.md", "SECURITY.md"):
        text = text.replace(f"]({name}", f"]({name.lower()}")
    return text


def commands() -> str:
    """Return a page with what each command prints for --help."""
    text = "# Commands\n\nWhat `logfs COMMAND --help` prints.\n"
    for name, parser in _subcommands(whole_parser()).items():
        text += f"\n## logfs {name}\n\n{_help(parser)}"
        for job, each in _subcommands(parser).items():
            text += f"\n### logfs {name} {job}\n\n{_help(each)}"
    return text


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


def _help(parser: argparse.ArgumentParser) -> str:
    # The width of the page, not that of the terminal in which it is made.
    parser.formatter_class = partial(argparse.HelpFormatter, width=90)  # type: ignore[assignment]
    return f"```text\n{parser.format_help()}```\n"


def settings() -> str:
    """Return a page with all settings, from the tables by which they are checked."""
    topics = "\n".join(map(_setting, TOPIC_SETTINGS.values()))
    store = "\n".join(map(_setting, BROKER_SETTINGS.values()))
    return f"{_SETTINGS}\n{topics}\n## Of the store\n\n{store}"


def _setting(setting: Setting) -> str:
    default = {None: "none", "": "empty"}.get(setting.default, f"`{setting.default}`")
    lines = f"- Type: {setting.type.value}. Default: {default}\n"
    if setting.valid is not None:
        lines += f"- Values: {setting.allowed}\n"
    if setting.synonyms:
        lines += "- Synonyms: " + ", ".join(f"`{name}`" for name in setting.synonyms) + "\n"
    return f"### {setting.name}\n\n{setting.doc}\n\n{lines}"


def api() -> str:
    """Return a page with the public names of the package, from their docstrings."""
    text = "# Python API\n\n::: logfs\n    options:\n      members: false\n      show_root_heading: false\n"
    for name in sorted(logfs.__all__, key=lambda name: (name != "open", name)):
        kind = getattr(logfs, name)
        if kind.__module__ != "logfs.errors":
            place = f"{kind.__module__}.{kind.__qualname__}"
            text += f"\n::: {place}\n    options:\n      heading: {name}\n      toc_label: {name}\n"
    return (
        text + "\n::: logfs.errors\n    options:\n      heading: Errors\n      toc_label: Errors\n"
    )
