"""Reads a page as a browser's parser would: a tree, what is wrong with it, its tables, forms and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
_MAY_BREAK = "\0"
_SELF_CLOSING = frozenset({"use", "rect", "path", "circle", "line"})


@dataclass(slots=True)
class Element:
    tag: str
    attrs: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    def walk(self) -> Iterator[Element]:
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child.walk()

    def all(self, *tags: str, **attrs: str) -> list[Element]:
        """Descendants of these tags whose attributes have these values (``data_url`` is ``data-url``)."""
        wanted = {name.replace("_", "-").strip("-"): value for name, value in attrs.items()}
        return [
            one
            for one in self.walk()
            if (not tags or one.tag in tags) and all(one.attrs.get(name) == value for name, value in wanted.items())
        ]

    def one(self, *tags: str, **attrs: str) -> Element:
        found = self.all(*tags, **attrs)
        assert len(found) == 1, f"{len(found)} of {tags} {attrs}"
        return found[0]

    @property
    def text(self) -> str:
        """What a person reads, single spaces; where a word may be broken it is still one."""
        if self.tag == "wbr":
            return _MAY_BREAK
        words = (child if isinstance(child, str) else child.text for child in self.children)
        return " ".join(" ".join(words).split()).replace(f" {_MAY_BREAK} ", "")

    @property
    def hidden_from_people(self) -> bool:
        return self.attrs.get("aria-hidden") == "true" or "hidden" in self.attrs

    @property
    def name(self) -> str:
        """What a screen reader calls a control."""
        return self.attrs.get("aria-label") or self.text or self.attrs.get("title", "")

    def rows(self) -> list[list[str]]:
        """The body of a table as texts."""
        return [
            [cell.text for cell in row.children if isinstance(cell, Element)]
            for body in self.all("tbody")
            for row in body.all("tr")
        ]


_RANDOM = re.compile(r'(name="(?:csrfmiddlewaretoken|form_key)" value=")[^"]*')


def calm(html: str | bytes) -> str:
    """The page without the random values of its forms: they contain any short word by chance."""
    return _RANDOM.sub(r"\1", html if isinstance(html, str) else html.decode())


class Page(HTMLParser):
    """``root`` is the document, ``html`` its text without random values; ``problems`` lists tags that were closed
    in the wrong order or never.
    """

    def __init__(self, html: str | bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.html = calm(html)
        self.root = Element("document", {})
        self.problems: list[str] = []
        self._open = [self.root]
        self.feed(html if isinstance(html, str) else html.decode())
        self.close()
        self.problems += [f"<{one.tag}> is never closed" for one in self._open[1:]]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(set(names)) != len(names):
            self.problems.append(f"<{tag}> has an attribute twice: {names}")
        made = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(made)
        if tag not in _VOID:
            self._open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _SELF_CLOSING | _VOID:
            self.problems.append(f"<{tag}/> does not close itself")
        self._open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if self._open[-1].tag == tag:
            self._open.pop()
        else:
            self.problems.append(f"</{tag}> closes <{self._open[-1].tag}>")

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)

    @property
    def page(self) -> Element:
        """The part that a refresh replaces."""
        return self.root.one(id="page")

    @property
    def text(self) -> str:
        return self.page.text

    @property
    def title(self) -> str:
        return self.root.one("head").one("title").text

    def ids(self) -> list[str]:
        return [one.attrs["id"] for one in self.root.walk() if "id" in one.attrs]

    def links(self) -> list[str]:
        """Addresses on this site that the page leads to, without fragments, as a browser would ask for them."""
        found = [one.attrs["href"].partition("#")[0] for one in self.root.all("a") if "href" in one.attrs]
        found += [one.attrs["data-url"] for one in self.root.walk() if one.attrs.get("data-url")]
        return [address for address in dict.fromkeys(found) if address]

    def posts(self) -> list[str]:
        """Where the changing part could send something."""
        return [one.attrs.get("action", "") for one in self.page.all("form") if one.attrs.get("method") == "post"]

    def table(self, name: str) -> list[list[str]]:
        """The shown rows of the table of that name; none when it is not there."""
        return [
            [cell.text for cell in row.children if isinstance(cell, Element)]
            for body in self.root.all("tbody", id=f"{name}-rows")
            for row in body.all("tr")
        ]
