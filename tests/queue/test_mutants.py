"""That the checks of the queue find mistakes: some of the mutants, each by its own test."""

from __future__ import annotations

import pytest

from tests.queue.mutants import MUTANTS, found_by

QUICK = {
    "a GPU is given once": "a_surplus_is_taken",
    "a GPU has one owner": "goes_on_whole",
    "a group begins whole": "goes_on_whole",
    "a host stays for a minute": "just_got_a_host",
    "who used less is first": "a_slice_ahead",
    "a person has a limit": "at_most_what_is_allowed",
    "only what is lent is used": "within_seconds",
    "shrink before a stop": "a_surplus_is_taken",
    "the lowest priority first": "the_lowest_priority",
    "an early job gives way": "gives_way",
}


@pytest.mark.parametrize("rule", QUICK)
def test_a_mutant_is_found(rule: str) -> None:
    mutant = next(each for each in MUTANTS if each.rule == rule)
    assert found_by(mutant, QUICK[rule])


def test_without_a_mutant_nothing_is_found() -> None:
    assert not found_by(None, "a_surplus_is_taken")
