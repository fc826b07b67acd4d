"""The whole API behind a real server: what takes seconds, and so stands beside the fast tests of tests/api."""

from __future__ import annotations

from tests.api.conftest import signing_key

__all__ = ["signing_key"]
