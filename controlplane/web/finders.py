"""Serves plotly.js from the plotly wheel as ``vendor/plotly.min.js``, and nothing else of that wheel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage

NAME = "vendor/plotly.min.js"


class _OneFile(FileSystemStorage):
    """Shows the bundle under its public name, for collectstatic."""

    def path(self, name: str) -> str:
        return str(settings.PLOTLY_JS)


class PlotlyFinder(BaseFinder):
    def check(self, **kwargs: Any) -> list[Any]:
        return []

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        found = [str(settings.PLOTLY_JS)] if path == NAME and settings.PLOTLY_JS.is_file() else []
        if find_all or kwargs.get("all"):
            return found
        return found[0] if found else []

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[tuple[str, FileSystemStorage]]:
        yield NAME, _OneFile()
