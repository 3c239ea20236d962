"""Coordinators, dealers and sites that do not keep to the protocol of a sealed job are refused, by what they did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.sealed_jobs import (
    SealedWorld,
    few_sites,
    play_out,
    play_round,
    play_until,
    sealed_job,
)

from ce.errors import BrokenTotals, JobFailed, MessageError
from ce.labels import Column, LabelTable
from ce.privacy.ring_words import RingWords
from ce.protocol.engine.aggregator import add_answer
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import ArraySpec, Step
from ce.protocol.messages.task import Answer, Array, Task
from ce.protocol.sealed.dealer import LocalDealer
from ce.protocol.sealed.opened_shares import AcceptedModel
from ce.protocol.sealed.site_tables import SiteTables
from ce.protocol.sealed_run import SealedParties

OnTask = Callable[[str, Task], Task]


def started(step: Step, **also: Any) -> tuple[SealedWorld, SealedParties]:
    """A job whose next round is the first of this step."""
    world = SealedWorld(sealed_job(2), few_sites(**also))
    parties = world.attempt()
    play_until(parties, step)
    return world, parties


def changed(task: Task, name: ArrayName, change: Callable[[Any], Array]) -> Task:
    return replace(task, arrays={**task.arrays, name: change(task.arrays[name].copy())})


def flipped(array: Any) -> Array:
    array[0] ^= 1
    return array  # type: ignore[no-any-return]


def only_for(name: str, change: Callable[[Task], Task]) -> OnTask:
    return lambda site, task: change(task) if site == name else task


# The dealer.


class FalseDealer(LocalDealer):
    """Changes one word of what it deals to the pair of a and b."""

    def products(self, seeds: Mapping[str, bytes]) -> Mapping[tuple[str, str], bytes]:
        dealt = dict(super().products(seeds))
        words = bytearray(dealt["a", "b"])
        words[0] ^= 1
        return {**dealt, ("a", "b"): bytes(words)}


@pytest.mark.promise(
    "A dealer whose products are wrong is noticed before any share is opened, and who notices it is charged."
)
def test_a_tampered_product_is_refused_and_charged() -> None:
    world = SealedWorld(sealed_job(2, 8.0), few_sites())
    honest = world.attempt().coordinator
    terms = honest.terms
    dealer = FalseDealer(terms.ring, honest._schedule.products, terms.widths)
    with pytest.raises(BrokenTotals, match="dealer check"):
        play_out(world.attempt(dealer=dealer))
    assert world.records["a"].charged == [terms.rho["a"]]
    assert not world.records["c"].charged
    assert all(r.release() is None or r.release().state != "opening" for r in world.records.values())  # type: ignore[union-attr]
    with pytest.raises(JobFailed, match="no further attempt"):
        play_out(world.attempt())


# The coordinator: tasks.


@pytest.mark.parametrize("step", ["mask", "verify", "release", "score", "prove"])
def test_a_step_that_is_left_out_is_refused(step: Step) -> None:
    _, parties = started(step)
    site, task = next(iter(parties.coordinator.tasks().items()))
    later: Step = "finish" if step != "prove" else "settle"
    with pytest.raises(MessageError, match="step: expected"):
        parties.sites[site].answer(replace(task, step=later))
    with pytest.raises(MessageError, match="round: expected"):
        parties.sites[site].answer(replace(task, round=task.round + 1))
    parties.sites[site].answer(task)
    with pytest.raises(MessageError, match=r"step: expected|round: expected"):
        parties.sites[site].answer(task)


@pytest.mark.parametrize("step", ["meet", "mask", "verify", "release", "score", "compare"])
def test_a_task_that_asks_for_anything_else_is_refused(step: Step) -> None:
    more = {ArrayName.of_broadcast("labels", "b"): ArraySpec((10,))}
    for change in (
        lambda asked: {**asked, **more},
        lambda asked: {name: ArraySpec((spec.shape[0] + 1,)) for name, spec in asked.items()},
        lambda asked: {name: ArraySpec(spec.shape, 3) for name, spec in asked.items()},
    ):
        _, parties = started(step)
        task = parties.coordinator.tasks()["b"]
        with pytest.raises(MessageError, match="asked"):
            parties.sites["b"].answer(replace(task, asked=change(dict(task.asked))))


def test_a_task_with_what_sealed_jobs_do_not_have_is_refused() -> None:
    _, parties = started("mask")
    task = parties.coordinator.tasks()["a"]
    for odd in ({"starts": (0,)}, {"checkpoint": 1}, {"resume": 1}, {"iteration": 1}, {"stage": 1}, {"stop": (0,)}):
        with pytest.raises(MessageError, match="has no starts"):
            parties.sites["a"].answer(replace(task, **odd))  # type: ignore[arg-type]


# The coordinator: what it passes on.


def test_boxes_of_others_and_boxes_of_other_rounds_are_refused() -> None:
    _, parties = started("mask")
    tasks = parties.coordinator.tasks()
    moved = tasks["b"].arrays[ArrayName.of_box("c")]
    with pytest.raises(MessageError, match="was not encrypted for this site"):
        parties.sites["a"].answer(changed(tasks["a"], ArrayName.of_box("c"), lambda box: moved[: len(box)]))
    _, parties = started("compare")
    seen: dict[int, Array] = {}
    index = next(i for i, b in parties.coordinator._blocks.items() if len(b[0].members) == 3)
    name = ArrayName.of_members(index, "opening", "a")

    def again(site: str, task: Task) -> Task:
        """An opening of one round before, where it has the size of the one that is due."""
        if site != "b" or name not in task.arrays:
            return task
        due = task.arrays[name]
        old = seen.get(len(due))
        seen[len(due)] = due
        return task if old is None else changed(task, name, lambda _: old)

    with pytest.raises(MessageError, match="was not encrypted for this site"):
        play_out(parties, on_task=again)


def test_different_numbers_of_categories_make_sites_unreadable_to_each_other() -> None:
    tables = few_sites()
    for site in ("a", "b"):  # a and b share two columns that c does not hold
        n = tables[site].n_objects
        shared = (
            Column("x2", "clustering", (0, 1), (np.arange(n) % 2).astype(np.int32), None),
            Column("x3", "clustering", (0, 1, 2), (np.arange(n) % 3).astype(np.int32), None),
        )
        tables[site] = LabelTable(tables[site].ids, (*tables[site].columns, *shared))
    world = SealedWorld(sealed_job(2), tables)
    parties = world.attempt()
    name = ArrayName.of_model("categories")

    def swapped(categories: Any) -> Array:
        categories[-2:] = categories[-2:][::-1].copy()
        return categories  # type: ignore[no-any-return]

    with pytest.raises(MessageError, match="categories"):  # a knows better
        parties.sites["a"].answer(changed(parties.coordinator.tasks()["a"], name, swapped))
    parties = world.attempt()
    # Sizes of boxes do not show it, but nobody can read what c tells.
    play_round(parties, on_task=only_for("c", lambda task: changed(task, name, swapped)))
    with pytest.raises(MessageError, match="was not encrypted for this site"):
        play_round(parties)


# Shares and models.


@pytest.mark.parametrize("what", ["share", "nonce"])
def test_a_share_that_was_replaced_is_refused(what: str) -> None:
    _, parties = started("score")
    name = ArrayName.of_broadcast(what, "c")
    with pytest.raises(MessageError, match="share of c: is not the one that it committed to"):
        play_round(parties, on_task=only_for("a", lambda task: changed(task, name, flipped)))


def test_a_share_replaced_in_a_later_attempt_is_refused() -> None:
    world, _ = started("score")
    later = world.attempt()
    play_until(later, "score")
    name = ArrayName.of_broadcast("share", "c")
    with pytest.raises(MessageError, match="share of c: is not the one that it committed to"):
        play_round(later, on_task=only_for("a", lambda task: changed(task, name, flipped)))


@pytest.mark.parametrize(("added", "law"), [(2000, "a cell has"), (20, "a table has")])
def test_a_false_share_with_large_counts_is_refused(added: int, law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = SiteTables._local_counts

    def more(self: SiteTables) -> RingWords:
        return counted(self) + np.uint32(added if self._context.site == "c" else 0)

    monkeypatch.setattr(SiteTables, "_local_counts", more)
    world = SealedWorld(sealed_job(2), few_sites())
    with pytest.raises(BrokenTotals, match=law):
        play_out(world.attempt())


def of_model(parties: SealedParties, change: Callable[[Any], Array]) -> Callable[[Task], Task]:
    return lambda task: changed(task, ArrayName.of_model("beta"), change)


def moved(by: float) -> Callable[[Any], Array]:
    """Beta moved towards one label of the first column, still a distribution in each column."""

    def change(beta: Any) -> Array:
        beta[0, 0] += by
        beta[1, 0] -= by
        return beta  # type: ignore[no-any-return]

    return change


@pytest.mark.promise("A site of a sealed job scores only with the model that the opened tables give.")
def test_a_crafted_model_is_refused() -> None:
    for site in ("a", "c"):
        _, parties = started("score")
        assert parties.coordinator.fit is not None
        by = float(parties.coordinator.fit.beta[1, 0]) * 0.9
        with pytest.raises(MessageError, match="model: "):
            play_round(parties, on_task=only_for(site, of_model(parties, moved(by))))


def test_a_second_model_is_refused_in_every_later_attempt() -> None:
    world, _ = started("compare")
    later = world.attempt()
    play_until(later, "score")
    with pytest.raises(MessageError, match="expected the one that this site has accepted before"):
        play_round(later, on_task=only_for("b", of_model(later, moved(1e-9))))


@pytest.mark.promise("Sites that were sent different models cannot read each other.")
def test_two_sites_that_were_sent_two_models_cannot_read_each_other() -> None:
    _, parties = started("score")
    play_round(parties, on_task=only_for("b", of_model(parties, moved(1e-9))))  # both are acceptable
    with pytest.raises(MessageError, match="was not encrypted for this site"):
        play_out(parties)


# Anything at all.

STEPS: tuple[Step, ...] = (
    "meet", "mask", "verify", "commit", "release", "score", "compare", "settle", "prove", "reveal", "finish",
)  # fmt: skip


def mutations(array: Any, rng: np.random.Generator) -> list[Any]:
    """The array with other bits, another length, another type, and none."""
    other = array.copy()
    if other.dtype == np.uint8:
        other[rng.integers(len(other))] ^= np.uint8(rng.integers(1, 256))
    else:
        other.reshape(-1)[rng.integers(other.size)] *= -3
    wrong_type = array.astype(np.int64 if array.dtype != np.int64 else np.float64)
    return [other, array[:-1], np.concatenate((array, array)), wrong_type, array.reshape(1, *array.shape), None]


@pytest.mark.parametrize("step", STEPS)
def test_no_array_of_a_task_crashes_a_site(step: Step) -> None:
    rng = np.random.default_rng(STEPS.index(step))
    _, parties = started(step)
    names = sorted(parties.coordinator.tasks()["b"].arrays)
    for at, name in enumerate(names[:: max(1, len(names) // 3)]):
        _, parties = started(step)
        task = parties.coordinator.tasks()["b"]
        found = mutations(task.arrays[name], rng)[(at + STEPS.index(step)) % 6]
        arrays = {key: value for key, value in task.arrays.items() if key != name}
        if found is not None:
            arrays[name] = found
        with pytest.raises(JobFailed):
            parties.sites["b"].answer(replace(task, arrays=arrays))


def test_no_array_of_an_answer_crashes_the_coordinator() -> None:
    rng = np.random.default_rng(0)
    world = SealedWorld(sealed_job(2), few_sites())
    parties = world.attempt()
    coordinator, tried = parties.coordinator, 0
    while coordinator.open_round is not None:
        for site, task in coordinator.tasks().items():
            answer = parties.sites[site].answer(task)
            for name in sorted(answer.arrays)[:2]:
                for other in mutations(answer.arrays[name], rng)[1:]:  # other bits are for the sites to notice
                    arrays = {key: value for key, value in answer.arrays.items() if key != name}
                    arrays |= {} if other is None else {name: other}
                    with pytest.raises(MessageError):
                        add_answer(coordinator, site, replace(answer, arrays=arrays))
                    tried += 1
            add_answer(coordinator, site, answer)
        coordinator.advance()
    assert tried > 300


def test_a_model_without_an_opened_share_is_no_accepted_model() -> None:
    parties = SealedWorld(sealed_job(2), few_sites()).attempt()

    def accepted(site: str, answer: Answer) -> Answer:
        state = np.array([0, 2 if site == "b" else 0], dtype=np.uint8)
        return replace(answer, arrays={**answer.arrays, ArrayName.of_broadcast("state", site): state})

    with pytest.raises(JobFailed, match="b says that it has accepted a model, and not that it has opened its share"):
        play_round(parties, on_answer=accepted)


def test_the_coordinator_checks_a_model_that_sites_say_they_have_accepted() -> None:
    world, parties = started("score")
    play_round(parties)
    model = parties.sites["a"].model
    assert model is not None
    beta = model.beta.copy()
    beta[0] *= 0.5
    false = AcceptedModel(model.weights, beta).encoded
    for records in world.records.values():  # all of them: the coordinator has nothing to compare it with but the tables
        assert records._release is not None
        records._release = replace(records._release, model=false)
    parties = world.attempt()
    play_until(parties, "release")
    with pytest.raises(JobFailed, match="not that of their tables"):
        play_round(parties)


def test_a_seed_or_state_of_nonsense_ends_the_job_and_nothing_else() -> None:
    world = SealedWorld(sealed_job(2), few_sites())
    parties = world.attempt()

    def nonsense(site: str, answer: Answer) -> Answer:
        state = np.full(2, 200, dtype=np.uint8)
        return replace(answer, arrays={**answer.arrays, ArrayName.of_broadcast("state", site): state})

    with pytest.raises(MessageError, match="a: state"):
        play_round(parties, on_answer=nonsense)
    with pytest.raises(MessageError, match="no checkpoints"):
        parties.sites["a"].resume(Task(1, "meet"), {})
    with pytest.raises(MessageError, match="has none"):
        parties.coordinator.snapshot()
