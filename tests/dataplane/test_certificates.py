"""A certificate is renewed while the router runs, and one that cannot be used takes nothing away."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from routing.dataplane.certificates import Certificate
from tests.sources.test_s3_misbehaving import certificates


def put(folder: Path, chain: str, key: str) -> None:
    for name, text in (("chain.pem", chain), ("key.pem", key)):
        made = folder / f"{name}.new"
        made.write_text(text)
        made.replace(folder / name)


def trusted(served: Certificate, authority: str) -> bool:
    """Whether a client that trusts this authority alone would talk to who serves with it now."""
    to, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cadata=authority).wrap_bio(back, to, server_hostname="127.0.0.1")
    server = served.context.wrap_bio(to, back, server_side=True)
    waits = True
    while waits:
        waits = False
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                waits = True
            except ssl.SSLCertVerificationError:
                return False
    return True


def test_who_comes_sees_what_the_files_hold_now(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before, chain, key = certificates()
    after, other_chain, other_key = certificates()
    put(tmp_path, chain, key)
    served = Certificate(str(tmp_path / "chain.pem"), str(tmp_path / "key.pem"))
    served.look()
    assert trusted(served, before) and not trusted(served, after)
    put(tmp_path, other_chain, key)
    for _ in range(3):
        served.look()
    assert trusted(served, before), "a pair that does not fit is none"
    assert caplog.text.count("stays as it is") == 1, "and said once"
    put(tmp_path, other_chain, other_key)
    served.look()
    assert trusted(served, after) and not trusted(served, before)
    (tmp_path / "key.pem").unlink()
    served.look()
    assert trusted(served, after), "nor is one that is gone"


def test_what_cannot_be_used_is_said_at_the_start(tmp_path: Path) -> None:
    _, chain, _ = certificates()
    put(tmp_path, chain, "no key")
    for key in ("key.pem", "nowhere.pem"):
        with pytest.raises(OSError):
            Certificate(str(tmp_path / "chain.pem"), str(tmp_path / key))
