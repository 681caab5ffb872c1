"""The text of an HTML page as a reader sees it, by the standard library's parser."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = frozenset({"meta", "br", "hr", "img", "input", "link"})


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    children: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """Descendants of that tag with these attributes (`class_` for `class`), in order."""
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        found = []
        for child in self.children:
            if child.tag == tag and all(child.attributes.get(name) == value for name, value in wanted.items()):
                found.append(child)
            found += child.all(tag, **attributes)
        return found

    def one(self, tag: str, **attributes: str) -> Element:
        (found,) = self.all(tag, **attributes)
        return found

    @property
    def text(self) -> str:
        """All text in it, blanks as one."""
        return " ".join("".join(self.texts).split())


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self._open[-1].children.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.texts.append(data)

    def close(self) -> None:
        super().close()
        assert self._open == [self.root], f"<{self._open[-1].tag}> is not closed"


def parse(page: str) -> Element:
    """The page's elements; fails where they are not properly nested."""
    builder = _Builder()
    builder.feed(page)
    builder.close()
    return builder.root


def every(element: Element) -> list[Element]:
    """All elements of a page."""
    return [element, *(inner for child in element.children for inner in every(child))]


def table(page: Element, caption: str) -> list[dict[str, str]]:
    """The rows of the one table with that caption, by the columns' names."""
    (found,) = [item for item in page.all("table") if item.one("caption").text == caption]
    names = [cell.text for cell in found.one("thead").all("th")]
    rows = []
    for row in found.one("tbody").all("tr"):
        cells = [child.text for child in row.children if child.tag in ("th", "td")]
        rows.append(dict(zip(names, cells, strict=True)))
    return rows


def figure(page: Element, title: str) -> Element:
    """The one figure with that heading."""
    (found,) = [
        item
        for item in page.all("figure")
        if any(item.all(level) and item.one(level).text == title for level in ("h3", "h4"))
    ]
    return found
