"""What MkDocs runs while it builds the site: adds pages from outside docs/, mends links, and lists the verbs.

`make docs` builds the site. It needs the extra `docs`.
"""

import inspect
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import click
import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from meshwright.cli import main

ROOT = Path(__file__).parents[1]
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages at the root of the repository, and what they are called in the site."""

LINK = re.compile(r"(\[[^\]]*\])\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the root of the repository, and the files there that pages link to."""
    for source, name in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    linked = {
        path
        for page in files.documentation_pages()
        for _, target, _ in LINK.findall(page.content_string)
        if (path := in_repository(page.src_uri, target)) and (ROOT / path).is_file()
    }
    for path in sorted(linked - set(OUTSIDE)):
        if not path.startswith("docs/"):
            files.append(File.generated(config, f"source/{path}", abs_src_path=str(ROOT / path)))
    return files


def in_repository(page: str, target: str) -> str:
    """Where a link of a page leads, from the root of the repository: ../LICENSE in cost.md is LICENSE."""
    folder = "" if page in OUTSIDE.values() else posixpath.join("docs", posixpath.dirname(page))
    return posixpath.normpath(posixpath.join(folder, target))


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Make the links of a page those of the site, and put the verbs on the page of the command line."""

    def in_site(link: re.Match[str]) -> str:
        path = in_repository(page.file.src_uri, link[2])
        if (ROOT / path).is_dir():
            return link[1][1:-1]  # the site has no folders to look into
        inside = path.removeprefix("docs/") if path.startswith("docs/") else OUTSIDE.get(path, f"source/{path}")
        there = posixpath.relpath(inside, posixpath.dirname(page.file.src_uri) or ".")
        return f"{link[1]}({there}{link[3] or ''})"

    if page.file.src_uri == "cli.md":
        markdown += "\n" + "\n".join(described(main, click.Context(main, info_name="meshwright")))
    return LINK.sub(in_site, markdown)


def described(command: click.Command, context: click.Context) -> Iterator[str]:
    """A verb as Markdown: what it does, how it is called, its options, and its own verbs."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            verb = command.get_command(context, name)
            assert verb is not None
            inner = click.Context(verb, info_name=name, parent=context)
            yield f"\n{'##' if context.parent is None else '###'} {inner.command_path}\n"
            yield f"```text\n{inner.command_path} {' '.join(verb.collect_usage_pieces(inner))}\n```\n"
            yield prose(verb.help or "")
            yield from options(verb, inner)
            yield from described(verb, inner)


def prose(text: str) -> str:
    """The help of a verb as Markdown. Click marks paragraphs that keep their lines with a backspace: examples."""
    return "\n\n".join(
        f"```sh\n{inspect.cleandoc(part[1:])}\n```" if part.startswith("\b") else part
        for part in inspect.cleandoc(text).split("\n\n")
    )


def options(verb: click.Command, context: click.Context) -> Iterator[str]:
    """The options of a verb, as a table."""
    given = [parameter for parameter in verb.get_params(context) if isinstance(parameter, click.Option)]
    records = [found for option in given if (found := option.get_help_record(context))]
    if records:
        yield "\n| option | what it does |\n|---|---|"
    for names, said in records:
        words = " ".join(said.split()).replace("|", "\\|").replace("<", "&lt;")
        yield f"| `{names.replace('|', chr(0x5C) + '|')}` | {words} |"


class Doctests(griffe.Extension):
    """Fences the examples in docstrings, which Markdown would take for quotations."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Fence those of one object: an example goes from its >>> to the next empty line."""
        if obj.docstring is not None:
            found = r"^>>> .*?(?=^\s*$|\Z)"
            fenced = re.sub(
                found, lambda example: f"```pycon\n{example[0].rstrip()}\n```\n", obj.docstring.value, flags=re.M | re.S
            )
            obj.docstring.value = fenced


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Refuse a page that loads something from elsewhere: the site must work without a network."""
    for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", output):
        if re.search(r"\b(?:src|href)=\"?(?:https?:)?//", tag) and "canonical" not in tag:
            raise PluginError(f"{page.file.src_uri} loads something from elsewhere: {tag}")
    return output
