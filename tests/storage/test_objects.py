"""Requests to a store: sent again where no answer comes, one answer counts."""

from __future__ import annotations

import asyncio

import pytest

from lldscope.storage import objects


def insist(answers, patience=0.01):
    """Ask with the n-th answer for the n-th request; returns the answer and how often it asked."""
    asked = []

    async def request():
        asked.append(None)
        answer = answers[min(len(asked), len(answers)) - 1]
        if answer == "never":
            await asyncio.Event().wait()
        if answer == "late":
            await asyncio.sleep(10 * patience)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return asyncio.run(objects._insist(request, patience)), len(asked)


def test_a_request_that_is_not_answered_is_sent_again():
    assert insist(["never", "never", "yes"]) == ("yes", 3)


def test_a_dead_connection_does_not_keep_new_requests_from_being_sent():
    assert insist(["never"] * 12 + ["yes"]) == ("yes", 13)


def test_a_late_answer_counts():
    answer, asked = insist(["late", "never"])
    assert answer == "late"
    assert asked > objects.ATTEMPTS


def test_a_refusal_is_an_answer():
    with pytest.raises(PermissionError):
        insist([PermissionError("no")])


def test_no_answer_at_all_ends(monkeypatch):
    monkeypatch.setattr(objects, "GIVE_UP", 6)
    with pytest.raises(TimeoutError):
        insist(["never"])
