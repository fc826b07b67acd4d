"""Certificates and who is trusted are renewed while the router runs; what cannot be used takes nothing away."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from routing.dataplane import upstream
from routing.dataplane.__main__ import look_again
from routing.dataplane.certificates import Authorities, Certificate
from routing.dataplane.router import Shared
from tests.dataplane.engines import Engine
from tests.dataplane.world import run, world
from tests.sources.test_s3_misbehaving import certificates


def put(folder: Path, chain: str, key: str) -> None:
    for name, text in (("chain.pem", chain), ("key.pem", key)):
        made = folder / f"{name}.new"
        made.write_text(text)
        made.replace(folder / name)


def trusted(served: Certificate, authority: str) -> bool:
    """Whether a client that trusts this authority alone would talk to who serves with it now."""
    return meets(ssl.create_default_context(cadata=authority), served.context)


def issued_by(folder: Path, pair: tuple[str, str, str]) -> ssl.SSLContext:
    put(folder, *pair[1:])
    return Certificate(str(folder / "chain.pem"), str(folder / "key.pem")).context


def meets(trust: ssl.SSLContext, served: ssl.SSLContext) -> bool:
    to, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trust.wrap_bio(back, to, server_hostname="127.0.0.1")
    server = served.wrap_bio(to, back, server_side=True)
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


def pem(folder: Path, text: str) -> str:
    made = folder / "ca.pem.new"
    made.write_text(text)
    return str(made.replace(folder / "ca.pem"))


def test_who_is_asked_is_trusted_by_what_the_bundle_holds_now(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    pairs = [certificates() for _ in range(2)]
    (before, *_), (after, *_) = pairs
    trust = Authorities(pem(tmp_path, before))
    old, new = (issued_by(tmp_path, pair) for pair in pairs)

    def trusts() -> tuple[bool, bool]:
        trust.look()
        return meets(trust.context, old), meets(trust.context, new)

    assert trusts() == (True, False) and "CA bundle" not in caplog.text
    pem(tmp_path, before + after)
    assert trusts() == (True, True), "both, while engines are renewed one by one"
    pem(tmp_path, after)
    assert trusts() == (False, True), "and one that left is trusted no more"
    caplog.clear()
    for broken in ("", "no certificate", after[:-60], None):
        pem(tmp_path, broken) if broken is not None else (tmp_path / "ca.pem").unlink()
        assert [trusts() for _ in range(3)] == [(False, True)] * 3
    assert caplog.text.count("the upstream CA bundle stays as it is") == 4, "each once"
    pem(tmp_path, before)
    assert trusts() == (True, False)
    assert caplog.text.count("another upstream CA bundle is in force") == 1


def test_without_a_bundle_there_is_nothing_to_look_at() -> None:
    trust = Authorities(None)
    before = trust.context
    trust.look()
    assert trust.context is before and before.verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(OSError):
        Authorities("/nowhere.pem")


def test_a_router_asks_its_instances_by_the_bundle_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "CONNECT_SECONDS", 30.0)  # of a machine that does much else
    before, after = certificates(), certificates()
    trust, served = Authorities(pem(tmp_path, before[0])), issued_by(tmp_path, after)
    shared = Shared(upstream_tls=trust.context)

    @run
    async def test() -> None:
        engine = await Engine().start(tls=served)
        try:
            async with world(shared=shared) as here:
                here.publish(instances=[{"id": "pod", "address": f"127.0.0.1:{engine.port}", "tls": True}])
                assert (await here.ask("POST", "/v1/completions", b"{}")).status == 502
                pem(tmp_path, after[0])
                look_again(shared, None, trust)
                assert (await here.ask("POST", "/v1/completions", b"{}")).status == 200
        finally:
            await engine.stop()

    test()
