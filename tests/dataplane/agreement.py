"""One router that was just started: what it decides for many random requests, as one line.

``python -m tests.dataplane.agreement CONFIG COUNT``. Equal requests come in every run; the router's own draws do not.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from routing.dataplane.config import read_config
from routing.dataplane.fleet import Fleet
from routing.dataplane.routes import Request, Route, route

WORDS = [
    "prompt",
    "Überschrift",
    "日本語の文",
    "🙂👩‍👩‍👧",
    "tool",
    "e\u0301",
    "\ud83d",
    "  spaces  ",
    "\n",
    "zero\u0000",
]


def decided(config: Path, count: int) -> dict[str, Any]:
    """``digest`` of all choices in their order, and how many each instance got."""
    fleet, draws = Fleet(), random.Random(11)
    fleet.apply(read_config(config.read_bytes()))
    choices, shares = hashlib.blake2b(), Counter[str]()
    for _ in range(count):
        found = route(fleet, asked(draws))
        assert isinstance(found, Route), found
        decision = found.variant.decide(found.key, 0.0)
        assert decision.key is not None, "every request here has a text"
        choices.update(",".join(decision.candidates).encode() + b";")
        shares[decision.instance] += 1
    return {"digest": choices.hexdigest(), "shares": shares}


def asked(draws: random.Random) -> Request:
    """A chat, a completion or an invocation; with tools, tenants, keys of its own and odd text."""
    text = " ".join(draws.choices(WORDS, k=draws.randrange(1, 16))) * (30 if draws.random() < 0.03 else 1)
    headers = [(b"host", b"router")]
    if draws.random() < 0.2:
        headers.append((b"X-Amzn-SageMaker-Prefix-Aware-Id", b"tenant-%d" % draws.randrange(9)))
    kind = draws.randrange(3)
    if kind == 0:
        return Request(b"POST", b"/endpoints/chat/invocations", headers, text.encode("utf-8", "surrogatepass"))
    document: dict[str, Any] = {"model": "chat", "prompt": text}
    if kind == 1:
        system = {"role": "system", "content": f"You are number {draws.randrange(50)}."}
        document = {"model": "chat", "messages": [system, {"role": "user", "content": text}]}
        if draws.random() < 0.3:
            document["tools"] = [{"type": "function", "function": {"name": f"f{draws.randrange(9)}"}}]
    if draws.random() < 0.1:
        document["prompt_cache_key"] = f"key-{draws.randrange(99)}"
    path = b"/v1/chat/completions" if kind == 1 else b"/v1/completions"
    return Request(b"POST", path, headers, json.dumps(document).encode())


if __name__ == "__main__":
    print(json.dumps(decided(Path(sys.argv[1]), int(sys.argv[2]))))
