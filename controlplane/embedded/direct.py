"""What runs on this machine is reached directly, whatever proxy leads from it into the world."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.request import ProxyHandler, build_opener

_HERE = ("127.0.0.1", "localhost", "::1")
_NAMES = ("no_proxy", "NO_PROXY")  # programs differ in the one that they read

# For the addresses of machines that run here, which no list of names covers.
open_direct = build_opener(ProxyHandler({})).open


def directly(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that have this process, and all that it starts, ask no proxy for what is here. What was excepted
    before still is."""
    excepted = [one.strip() for name in _NAMES for one in environment.get(name, "").split(",") if one.strip()]
    return dict.fromkeys(_NAMES, ",".join(dict.fromkeys([*excepted, *_HERE])))
