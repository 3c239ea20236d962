"""One small exchange of a job with four site processes, in bare gRPC pings.

A ping sends 1 KB to as many processes over the same mutual TLS and waits until all have sent it back. Times are wall
time of all processes on the same cores; CPU is the sum over coordinator and sites, set-up of the job included.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from harness.labels import by_rows, planted
from harness.measurement import Measurement, Ratio, Subject
from harness.options import Options
from harness.processes import deployed, per_exchange
from peers.echo import GrpcEchoes, TlsEchoes

SITES = ("east", "north", "south", "west")
PING_BYTES, PINGS = 1000, 300
OBJECTS, COLUMNS, CLUSTERS = 400, 5, 3
#: So many that the beginning and the end of the job, with keys and results, weigh next to nothing.
ITERATIONS = 1000
PROMISES = {"plain": 3.0, "masked": 3.5, "blind": 3.5}


@contextmanager
def part(options: Options) -> Iterator[list[Measurement]]:
    _, codes = planted(OBJECTS, COLUMNS, CLUSTERS, wrong=0.2)
    with ExitStack() as stack:
        deployment = stack.enter_context(deployed(by_rows(codes, SITES)))
        ping = stack.enter_context(GrpcEchoes(deployment.directory, SITES))
        raw = stack.enter_context(TlsEchoes(deployment.directory, SITES))

        def exchange(privacy: str) -> dict[str, float]:
            keys = {"restarts": 1, "max_iterations": ITERATIONS, "tolerance": 0.0, "privacy": privacy}
            return per_exchange(deployment, clusters=CLUSTERS, **keys).times()

        yield [
            Measurement(
                name="small exchange",
                what=f"One exchange of a row-distributed BCE job, {len(SITES)} site processes, {OBJECTS} objects, in "
                f"pings of {PING_BYTES} bytes to as many processes.",
                unit="s",
                subjects=(
                    Subject("gRPC ping", partial(ping.once, PING_BYTES, PINGS), "limit"),
                    Subject("raw TLS ping", partial(raw.once, PING_BYTES, PINGS), "limit"),
                    *(Subject(privacy, partial(exchange, privacy)) for privacy in PROMISES),
                ),
                claims=(
                    *(
                        Ratio(f"{privacy}, in gRPC pings", most=most, of=f"{privacy}: wall", to="gRPC ping: wall")
                        for privacy, most in PROMISES.items()
                    ),
                    Ratio("plain, in gRPC pings, CPU", of="plain: CPU", to="gRPC ping: CPU"),
                    Ratio("masked, of plain, CPU", of="masked: CPU", to="plain: CPU"),
                    Ratio("blind, of plain, CPU", of="blind: CPU", to="plain: CPU"),
                    Ratio("gRPC ping, of a raw TLS ping", of="gRPC ping: wall", to="raw TLS ping: wall"),
                ),
                turns=options.turns(5, 15),
            )
        ]
