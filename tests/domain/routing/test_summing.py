"""Pages of several processes as one: counters never fall, gauges are those of who is there."""

from __future__ import annotations

from routing.dataplane.exposing import exposition
from routing.dataplane.router import Shared
from routing.domain.expositions import read_samples
from routing.domain.summing import Tally


def page(answers: int = 0, in_flight: int = 0, version: int = 7, hot: int = 3, *, more: str = "") -> str:
    return (
        "# HELP hearth_routing_answers_total Answers.\n# TYPE hearth_routing_answers_total counter\n"
        f'hearth_routing_answers_total{{endpoint="a b",status="200"}} {answers}\n{more}'
        "# HELP hearth_routing_in_flight Under way.\n# TYPE hearth_routing_in_flight gauge\n"
        f'hearth_routing_in_flight{{instance="x"}} {in_flight}\n'
        "# HELP hearth_routing_config_version In force.\n# TYPE hearth_routing_config_version gauge\n"
        f"hearth_routing_config_version {version}\n"
        "# HELP hearth_routing_hot_set_size Hot.\n# TYPE hearth_routing_hot_set_size gauge\n"
        f"hearth_routing_hot_set_size {hot}\n"
    )


def said(tally: Tally) -> dict[str, float]:
    return {one.name.removeprefix("hearth_routing_"): one.value for one in read_samples(tally.text())}


def test_counts_add_up_and_what_a_sum_would_distort_does_not() -> None:
    tally = Tally()
    tally.hear(1, page(5, 2, version=7, hot=3))
    tally.hear(2, page(6, 1, version=6, hot=4))
    assert said(tally) == {"answers_total": 11, "in_flight": 3, "config_version": 6, "hot_set_size": 4}
    tally.hear(1, page(8, 0))
    assert said(tally)["answers_total"] == 14 and said(tally)["in_flight"] == 1


def test_who_ended_keeps_its_counts_and_nothing_else_and_a_new_one_begins_at_none() -> None:
    tally = Tally()
    tally.hear(1, page(5, 2))
    tally.hear(2, page(6, 1))
    tally.end(1)
    assert said(tally)["answers_total"] == 11 and said(tally)["in_flight"] == 1
    tally.hear(3, page(0, 4))
    assert said(tally)["answers_total"] == 11 and said(tally)["in_flight"] == 5
    tally.end(3)
    tally.end(2)
    tally.end(2)
    assert said(tally) == {"answers_total": 11}
    tally.hear(1, page(1))  # a process number that comes again is another process
    assert said(tally)["answers_total"] == 12


def test_who_was_never_heard_ends_without_a_word() -> None:
    tally = Tally()
    assert tally.text() == ""
    tally.end(1)
    assert tally.text() == ""


def test_names_that_one_alone_has_are_there_with_their_kind_once() -> None:
    tally = Tally()
    tally.hear(1, page(1))
    own = 'hearth_routing_answers_total{endpoint="a b",status="500"} 2\n'
    tally.hear(2, page(1, more=own))
    lines = tally.text().splitlines()
    assert lines.count("# TYPE hearth_routing_answers_total counter") == 1
    assert own.strip() in lines and 'hearth_routing_answers_total{endpoint="a b",status="200"} 2' in lines
    at = lines.index(own.strip())
    assert lines[at - 2] == "# TYPE hearth_routing_answers_total counter", "samples stand behind their own name"


def test_one_process_alone_says_what_it_says_by_itself() -> None:
    tally, text = Tally(), exposition(Shared(), following=True)
    tally.hear(1, text)
    assert list(read_samples(tally.text())) == list(read_samples(text))
