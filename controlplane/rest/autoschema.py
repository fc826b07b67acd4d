"""How one API class becomes operations of the document: a list is whatever pages."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema


class HearthSchema(AutoSchema):
    """Recognises lists by their paging, not by the framework's generic list classes."""

    def _is_list_view(self, serializer: Any = None) -> bool:
        return self.method == "GET" and hasattr(self.view, "ordering_fields")
