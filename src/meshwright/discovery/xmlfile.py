"""XML files, read safely: no entities are expanded, nothing outside the file is looked at, and its size is bounded."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from meshwright.discovery.model import wrong

MOST_DEPTH = 100
MOST_ELEMENTS = 300_000


@dataclass(slots=True)
class Element:
    """An element with its attributes, its text, and the line where it begins."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list["Element"] = field(default_factory=list)
    text: str = ""

    def get(self, name: str) -> str:
        """An attribute; empty if there is none."""
        return self.attributes.get(name, "")

    def each(self, *tags: str) -> Iterator["Element"]:
        """The children with one of these tags."""
        return (child for child in self.children if child.tag in tags)

    def walk(self) -> Iterator["Element"]:
        """This element and all that are inside it."""
        waiting = [self]
        while waiting:
            element = waiting.pop()
            yield element
            waiting += reversed(element.children)


def parse_xml(text: str, source: str) -> Element:
    """The root element of a text. Entity declarations are refused: they are how small files become huge ones."""
    parser = expat.ParserCreate("utf-8")  # whatever encoding the file names: it is decoded already
    open_ones = [Element("", {}, 0)]
    count = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        line = parser.CurrentLineNumber
        if len(open_ones) > MOST_DEPTH:
            raise wrong(source, line, f"more than {MOST_DEPTH} elements inside one another")
        if count > MOST_ELEMENTS:
            raise wrong(source, line, f"more than {MOST_ELEMENTS:,} elements; no topology of a host needs as many")
        element = Element(tag, attributes, line)
        open_ones[-1].children.append(element)
        open_ones.append(element)

    def end(_: str) -> None:
        open_ones.pop()

    def data(letters: str) -> None:
        open_ones[-1].text += letters

    def entity(name: str, *_: object) -> None:
        raise wrong(
            source, parser.CurrentLineNumber, f"declares the entity {name[:40]!r}; no topology file needs entities"
        )

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.EntityDeclHandler = data, entity
    parser.buffer_text = True
    try:
        parser.Parse(text.encode(errors="replace"), True)
    except expat.ExpatError as error:
        raise wrong(source, error.lineno, f"malformed XML: {expat.ErrorString(error.code)}") from None
    return open_ones[0].children[0]
