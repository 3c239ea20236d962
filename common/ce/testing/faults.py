"""Faults of a played world: what can happen to its processes, its streams and its clock."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

from ce.protocol.messages.steps import Step
from ce.testing.network import COORDINATOR
from ce_coordinator.core.events import DrainRequested
from ce_proto.v1 import site_pb2 as pb

if TYPE_CHECKING:
    from ce.testing.world import PlayedWorld

#: A stream over which nothing arrives is given up after this many seconds.
KEEPALIVE_S = 2.5
#: The kinds that `random_faults` draws from; those named twice are drawn twice as often.
KINDS = ("crash", "crash", "at a write", "at a write", "both", "all", "cut", "cut", "stall", "jump", "leave", "drain")


class Faults:
    """Each method makes one fault happen now; `world.clock.at(delay_s, lambda: world.faults.crash(...))` plans one."""

    def __init__(self, world: PlayedWorld) -> None:
        self._world = world
        self._at_steps: dict[str, tuple[Step, bool, float]] = {}  # by process: step, sent, seconds

    def crash(self, process: str, dead_for_s: float) -> None:
        """Kill a process (a site's name, or COORDINATOR), and start it again after a while."""
        world = self._world
        if (world.machine if process == COORDINATOR else world.sites.get(process)) is None:
            return
        world.note(f"{process} is killed, for {dead_for_s:.2f} s")
        world.kill(process)
        world.clock.at(dead_for_s, lambda: world.start(process))

    def kill_at_write(self, process: str, count: int, before: bool, dead_for_s: float) -> None:
        """Kill a process at its `count`-th write to its disk from now, before or after the write happens."""
        world = self._world
        world.note(f"{process} will be killed {'before' if before else 'after'} write {count}")
        world.disks.kill_at(process, count, before=before)
        world.dead_for_s[process] = dead_for_s

    def kill_at_step(self, process: str, step: Step, sent: bool, dead_for_s: float) -> None:
        """Kill a site at its next answer of this step, before it leaves or when it is `sent`; or the coordinator, when
        the next answer of this step reaches it."""
        self._at_steps[process] = (step, sent, dead_for_s)

    def at_step(self, process: str, frame: pb.SiteFrame, sent: bool) -> bool:
        """A site sends a frame, or has `sent` it, or one reaches the coordinator: whether the process is killed."""
        planned = self._at_steps.get(process)
        if planned is None or planned[1] != sent or frame.WhichOneof("frame") != "answer":
            return False
        step, _, seconds = planned
        if frame.answer.step != pb.Step.Value(f"STEP_{step.upper()}"):
            return False
        del self._at_steps[process]
        self._world.note(f"{process} is killed at {step}, for {seconds:.2f} s")
        self._world.dead_for_s[process] = seconds
        return True

    def lose_disk(self, site: str, dead_for_s: float) -> None:
        """Kill a site, and start it again with nothing but its settings, keys and labels. One that is down already
        starts when it would have."""
        world = self._world
        world.note(f"{site} loses its disk")
        was_up = world.sites.get(site) is not None
        if was_up:
            world.kill(site)
        self.empty_disk(site)
        if was_up:
            world.clock.at(dead_for_s, lambda: world.start(site))

    def empty_disk(self, site: str) -> None:
        """Remove state and results of a site that is down."""
        settings = self._world.settings[site]
        for directory in (settings.state, settings.results):
            shutil.rmtree(directory, ignore_errors=True)
        self._world.checks.disk_lost(site)

    def cut(self, site: str, lost: str) -> None:
        """Break a site's stream. `lost`: frames on their way "up", "down" or in "both" directions are lost; "nothing":
        they still arrive, at an end that has given up the stream."""
        world = self._world
        stream = world.network.current[site]
        if stream is None:
            return
        world.note(f"the stream of {site} breaks, {lost} lost")
        world.network.break_stream(stream)
        stream.lost = {"up": {"up"}, "down": {"down"}, "both": {"up", "down"}, "nothing": set()}[lost]

    def stall(self, site: str, seconds: float) -> None:
        """Nothing arrives for a while. If that is longer than KEEPALIVE_S, both ends give the stream up, one first."""
        world = self._world
        stream = world.network.current[site]
        if stream is None:
            return
        world.note(f"nothing gets through to {site} for {seconds:.2f} s")
        stream.stalled_until = world.clock.now + seconds
        if seconds > KEEPALIVE_S:
            stream.lost |= {"up", "down"}
            at_site, at_coordinator = (world.random.uniform(KEEPALIVE_S, seconds + KEEPALIVE_S) for _ in range(2))
            world.clock.at(at_site, lambda: world.network.ended_at_site(stream), site)
            world.clock.at(at_coordinator, lambda: world.network.ended_at_coordinator(stream), COORDINATOR)

    def jump(self, seconds: float) -> None:
        """Set the coordinator's clock forward or back while it is down for 0.2 s."""
        world = self._world
        world.note(f"the clock jumps by {seconds:.0f} s while the coordinator is down")
        self.crash(COORDINATOR, 0.2)
        world.clock.ahead_s += seconds

    def leave(self, site: str) -> None:
        """SIGTERM at a site: it asks for checkpoints, says goodbye, and starts again 0.3 s later."""
        world = self._world
        stream, played = world.network.current[site], world.sites[site]
        if stream is None or played is None:
            return
        world.note(f"{site} stops, and starts again")
        world.network.send_up(stream, pb.SiteFrame(leaving=pb.Leaving()))

        def goes() -> None:
            if world.sites[site] is not played:
                return
            world.as_process(site, played.site_jobs.stopped)
            if world.sites[site] is played:  # it was not killed at a write just now
                if stream.open_at_site:
                    world.network.send_up(stream, pb.SiteFrame(goodbye=pb.Goodbye()))
                world.kill(site)
                world.clock.at(0.3, lambda: world.start(site))

        world.clock.at(world.random.uniform(0.05, 0.3), goes, site)

    def drain(self) -> None:
        """SIGTERM at the coordinator: it asks for checkpoints, and starts again 0.3 s after it stopped."""
        world = self._world
        if world.machine is None:
            return
        world.note("the coordinator drains, and starts again")
        world.handle(DrainRequested())
        world.clock.at(world.random.uniform(0.05, 0.5), lambda: self.crash(COORDINATOR, 0.3), COORDINATOR)


def random_faults(world: PlayedWorld, plan: random.Random, within_s: float) -> int:
    """Plan 1 to 6 faults of KINDS, drawn from `plan`, in the next `within_s` seconds. Returns how many."""
    faults, clock, sites = world.faults, world.clock, tuple(world.settings)
    count = plan.randint(1, 6)
    for _ in range(count):
        when = plan.uniform(0.0, within_s)
        site = plan.choice(sites)
        process = plan.choice((COORDINATOR, site))
        away = plan.choice((0.02, 0.3, 1.0, 8.0))
        match plan.choice(KINDS):
            case "crash":
                clock.at(when, lambda p=process, a=away: faults.crash(p, a))  # type: ignore[misc]
            case "at a write":
                which = (plan.randint(1, 12), plan.random() < 0.5, away)
                clock.at(when, lambda p=process, w=which: faults.kill_at_write(p, *w))  # type: ignore[misc]
            case "both":
                clock.at(when, lambda s=site, a=away: [faults.crash(p, a) for p in (COORDINATOR, s)])  # type: ignore[misc, func-returns-value]
            case "all":
                clock.at(when, lambda a=away: [faults.crash(p, a) for p in (COORDINATOR, *sites)])  # type: ignore[misc, func-returns-value]
            case "cut":
                lost = plan.choice(("up", "down", "both", "nothing"))
                clock.at(when, lambda s=site, d=lost: faults.cut(s, d))  # type: ignore[misc]
            case "stall":
                seconds = plan.choice((0.2, 1.0, 4.0, 12.0))
                clock.at(when, lambda s=site, t=seconds: faults.stall(s, t))  # type: ignore[misc]
            case "jump":
                seconds = plan.choice((-5000.0, -3.0, 30.0))
                clock.at(when, lambda t=seconds: faults.jump(t))  # type: ignore[misc]
            case "leave":
                clock.at(when, lambda s=site: faults.leave(s))  # type: ignore[misc]
            case "drain":
                clock.at(when, faults.drain)
    return count
