"""What a browser would see of a page: elements with their attributes, visible text, and scripts apart."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

void_elements = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}


class Outline(HTMLParser):
    """A page taken apart. `problems` names elements that were closed out of order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.problems: list[str] = []
        self._words: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()

    @property
    def text(self) -> str:
        """All visible text, white space made single."""
        return " ".join(" ".join(self._words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every element called `tag`."""
        return [attributes for name, attributes in self.elements if name == tag]

    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.elements if "id" in attributes]

    def chart_specs(self) -> dict[str, Any]:
        """Chart name to its specification, read as strict JSON."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        return {
            str(attributes["id"]).removeprefix("chart-").removesuffix("-spec"): json.loads(
                body, parse_constant=refuse
            )
            for attributes, body in self.scripts
            if attributes.get("type") == "application/json"
        }

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag == "script":
            self.scripts.append((attributes, ""))
        if tag not in void_elements:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()
        else:
            self.problems.append(f"</{tag}> while {self._open[-3:]} are open")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            attributes, body = self.scripts[-1]
            self.scripts[-1] = (attributes, body + data)
        elif not self._open or self._open[-1] != "style":
            self._words.append(data)
