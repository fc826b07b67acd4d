"""Numbers of others at their edges: what can be read can be added up, stored, read back and shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routing.domain.dialects import MOST as MOST_SAID
from routing.domain.dialects import EngineReading, read_metrics
from routing.domain.dialects_usage import TAIL_BYTES, TokenUse, use_of_body, use_of_stream
from routing.domain.figures import Figures
from routing.domain.publishing import place_of
from routing.domain.sketches import LARGEST, MOST, SMALLEST, Sketch, bucket_of
from routing.domain.told import NotTold, read_told

LOWEST, HIGHEST = bucket_of(0.0), bucket_of(LARGEST)


def sketch(**counts: int) -> Sketch:
    return Sketch.from_json({name.replace("_", "-"): count for name, count in counts.items()})


@pytest.mark.parametrize(
    "stored",
    [
        {"0": -1},
        {"0": 1.0},
        {"0": True},
        {"0": "1"},
        {"0": None},
        {"0": MOST + 1},
        {"0": 10**400},
        {"+5": 1},
        {" 5": 1},
        {"05": 1},
        {"1_0": 1},
        {"-0": 1},
        {"\u0665": 1},
        {"1e2": 1},
        {"": 1},
        {str(LOWEST - 1): 1},
        {str(HIGHEST + 1): 1},
        {"9" * 5000: 1},
        [["0", 1]],
        "0",
        None,
    ],
)
def test_a_sketch_that_was_never_made_is_refused(stored: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Sketch.from_json(stored)


def test_the_largest_sums_are_read_back_and_have_quantiles() -> None:
    total, row = sketch(**{str(HIGHEST): MOST}), sketch(_500=1)
    for _ in range(3):
        total.merge(sketch(**{str(HIGHEST): MOST}))
        total.merge(row)
    again = Sketch.from_json(json.loads(json.dumps(total.to_json())))
    assert again.buckets == total.buckets and again.buckets[HIGHEST] == MOST and again.buckets[-500] == 3
    assert again.quantile(0.5) == pytest.approx(LARGEST, rel=0.03) and again.quantile(0) is not None


def test_merging_with_nothing_and_with_itself() -> None:
    one = sketch(_500=2, **{"7": 1})
    one.merge(Sketch())
    assert one.count == 3
    nothing = Sketch()
    nothing.merge(one)
    assert nothing.buckets == one.buckets
    one.merge(one)
    assert one.count == 6 and nothing.count == 3, "what was taken in is not shared"


@pytest.mark.parametrize(
    ("values", "part", "least", "most"),
    [
        ([0.25], 0.0, 0.2475, 0.2525),
        ([0.25], 1.0, 0.2475, 0.2525),
        ([0.0, 0.0, 1.0], 0.5, 0.0, 0.0),
        ([0.0, 0.0, 1.0], 0.99, 0.99, 1.01),
        ([SMALLEST * 1.5], 0.5, SMALLEST * 1.48, SMALLEST * 1.52),
        ([1.0] * 99 + [100.0], 0.99, 0.99, 1.01),
        ([1.0] * 99 + [100.0], 0.991, 99.0, 101.0),
    ],
)
def test_quantiles_at_the_edges(values: list[float], part: float, least: float, most: float) -> None:
    made = Sketch()
    for value in values:
        made.add(value)
    found = made.quantile(part)
    assert found is not None and least <= found <= most


def test_counts_of_none_are_no_sample() -> None:
    assert Sketch.from_json({"0": 0, "5": 0}).quantile(0.5) is None
    only = Sketch.from_json({"0": 0, "-500": 1})
    assert only.count == 1 and only.quantile(0.0) == only.quantile(1.0)


def test_figures_that_are_as_large_as_can_be_stay_readable_whoever_adds_to_them() -> None:
    most = {
        "requests": MOST, "prompt_tokens": MOST, "cached_tokens": MOST, "told": MOST, "most_in_flight": MOST,
        "outcomes": {"Primary": MOST}, "instances": {"pod-1": MOST}, "ttft": {"Primary": {"-500": MOST}},
        "overhead": {"-600": MOST}, "waited": {"-600": MOST},
    }  # fmt: skip
    total = Figures.from_json(most)
    for _ in range(3):
        total.merge(Figures.from_json(most))
        total = Figures.from_json(json.loads(json.dumps(total.to_json())))
    assert total.requests == total.outcomes["Primary"] == total.all_ttft.count == MOST and total.hit_rate == 1.0


@pytest.mark.parametrize("name", ["a\x00b", "\ud800", "a\nb", "x" * 65])
@pytest.mark.parametrize("of", ["outcomes", "instances", "answers", "failures", "refusals"])
def test_a_name_that_no_row_can_hold_is_refused(of: str, name: str) -> None:
    with pytest.raises(ValueError, match="name of a figure"):
        Figures.from_json({of: {name: 1}})


def message(**fields: Any) -> dict[str, Any]:
    return {"router": "a" * 32, "started_at": 1.0, "number": 1, **fields}


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "a\x00"},
        {"host": "\udfff"},
        {"address": "10.0.0.1\x00:80"},
        {"in_flight": {"pod\x00": 1}},
        {"ejected": ["pod\x00"]},
        {"ejected": "pod"},
        {"ejected": {"pod": 1}},
        {"ejected": ["pod"] * 5001},
        {"in_flight": {"\ud800": 1}},
        {"in_flight": {"pod": -1}},
        {"in_flight": {"pod": 1.0}},
        {"in_flight": {"pod": 2**53}},
        {"in_flight": [1]},
        {"in_flight": {str(number): 1 for number in range(5001)}},
        {"number": 2**53},
        {"number": True},
        {"started_at": 10**400},
        {"started_at": None},
        {"config_version": 2**48},
        {"config_version": -1},
        {"router": "A" * 32},
        {"router": "a" * 32 + "\n"},
        {"variants": {}},
        {"variants": [None]},
        {"variants": [{"endpoint": "chat"}]},
        {"variants": [{"endpoint": "chat", "variant": "default", "figures": {"ttft": {"Primary": {"0": 10**400}}}}]},
        {"variants": [{"endpoint": "chat", "variant": "default", "counted": {"requests": -1}}]},
        {"variants": [{"endpoint": "chat", "variant": "default", "counted": {"counts": {"zz": 1}}}]},
        {"variants": [{"endpoint": "chat", "variant": "default", "counted": []}]},
    ],
)
def test_a_message_that_could_not_be_stored_is_none(fields: dict[str, Any]) -> None:
    with pytest.raises(NotTold):
        read_told(message(**fields))
    assert read_told(message()).variants == ()


@pytest.mark.parametrize(
    ("said", "reading"),
    [
        ('vllm:num_requests_running{a="1"} 1e308\nvllm:num_requests_running{a="2"} 1e308\n', {"running": None}),
        ("vllm:num_requests_running 1e300\n", {"running": None}),
        (f"vllm:num_requests_running {MOST_SAID - 1}\n", {"running": MOST_SAID - 1}),
        (f"vllm:num_requests_running {MOST_SAID}\n", {"running": None}),
        ("vllm:num_requests_running 1e-300\n", {"running": 0}),
        ("vllm:num_requests_running -0\n", {"running": 0}),
        ("vllm:prefix_cache_queries 1e300\nvllm:prefix_cache_hits 1e299\n", {"queried_tokens": None}),
        ("llamacpp:prompt_tokens_total 1e308\nllamacpp:prompt_tokens_cached 1e308\n", {"queried_tokens": None}),
        ("vllm:kv_cache_usage_perc 1e-320\n", {"kv_usage": 1e-320}),
        ("vllm:num_requests_running 5", {"running": None}),
        ("vllm:num_requests_running 5\nvllm:num_requests_waiting 1", {"running": 5, "waiting": None}),
        ("vllm:num_requests_running 5\x00\nvllm:num_requests_waiting 1\n", {"running": None, "waiting": 1}),
        ('vllm:num_requests_running{a="' + "x" * 9000 + '"} 5\nvllm:num_requests_waiting 1\n', {"waiting": 1}),
        ('[{"kvCacheStats": {}, "numActiveRequests": 1e300}]', {"running": None}),
        ('[{"kvCacheStats": {}, "numActiveRequests": NaN, "numQueuedRequests": 2}]', {"running": None, "waiting": 2}),
        ('[{"kvCacheStats": {}, "numActiveRequests": ' + "9" * 5000 + "}]", {"running": None}),
        ('[{"kvCacheStats": {"usedNumBlocks": 1e300, "maxNumBlocks": 5e-324}}]', {"kv_usage": None}),
        ('[{"kvCacheStats": {"usedNumBlocks": 1, "maxNumBlocks": 4}, "numActiveRequests": 3}', {"running": None}),
    ],
)
def test_a_page_that_is_hostile_or_cut_says_only_what_can_be(said: str, reading: dict[str, object]) -> None:
    found: EngineReading = read_metrics(said)
    assert {name: getattr(found, name) for name in reading} == reading


@pytest.mark.parametrize(
    ("body", "use"),
    [
        (b'{"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}}}', TokenUse(5)),
        (b'{"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": -1}}}', TokenUse(5)),
        (b'{"usage": {"prompt_tokens": 5, "prompt_tokens_details": []}}', TokenUse(5)),
        (b'{"usage": {"prompt_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}}', TokenUse(0, 0)),
        (b'{"usage": {"prompt_tokens": 9007199254740992}}', None),
        (b'{"usage": {"prompt_tokens": 1e3}}', None),
        (b'{"usage": {"prompt_tokens": ' + b"9" * 5000 + b"}}", None),
        (b'{"usage": ' + b"[" * 20_000, None),
        (b'{"usage": {"prompt_tokens": 5}', None),
        (b'\xff\xfe{"usage"', None),
    ],
)
def test_what_an_answer_says_of_tokens_is_believed_within_bounds(body: bytes, use: TokenUse | None) -> None:
    assert use_of_body(body) == use


def test_a_stream_that_is_cut_anywhere_says_what_its_last_whole_event_says() -> None:
    events = [b'data: {"usage": {"prompt_tokens": %d}}\r\n\r\n' % number for number in range(1, 400)]
    whole = b"".join(events)[-TAIL_BYTES:]
    for end in range(len(whole) - 120, len(whole)):
        for begin in (0, 1, 17):
            found = use_of_stream(whole[begin:end])
            assert found is not None and 396 <= found.prompt_tokens <= 399


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:http", "10.0.0.1:8 0", ":80", "http://10.0.0.1",
        "http://10.0.0.1:80", "10.0.0.1:80/path", "user@host:80", "a b:80", "a\nb", "[fd00::1", "fd00::1]", "[]:80",
        "[fd00::1]:", "[fd00::1]:x", "é.local", "-x:80", "host:\u0668\u0660",
    ],
)  # fmt: skip
def test_an_address_that_no_router_could_read_is_none(address: str) -> None:
    assert place_of(address, 8080) == ""
