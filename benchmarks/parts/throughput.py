"""14 MB up and down at each of four sites: an iteration against raw TLS sockets that carry the same bytes.

Sockets and job run on the same cores with the same number of processes. An iteration also computes: the same job in one
process, where nothing is sent, is measured beside it. Times are wall time; CPU is the sum over coordinator and sites.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from harness.labels import by_columns, planted
from harness.measurement import Measurement, Ratio, Subject
from harness.options import Options
from harness.processes import deployed, per_iteration
from peers.echo import GrpcEchoes, TlsEchoes
from peers.iterations import Stamp, between, now

import ce

SITES = ("east", "north", "south", "west")
#: 8 bytes for each start, cluster and object: 14 MB. Many starts of few objects are as many numbers as few starts of
#: many objects, which would take longer to align.
STARTS, CLUSTERS, OBJECTS = 20, 7, 12_500
WORD = 8
COLUMNS_PER_SITE = 2
#: Without passes that only compute: what is measured is the exchange.
KEYS: dict[str, Any] = {
    "clusters": CLUSTERS,
    "restarts": STARTS,
    "max_iterations": 8,
    "tolerance": 0.0,
    "local_loops": 1,
}


@contextmanager
def part(options: Options) -> Iterator[list[Measurement]]:
    _, codes = planted(OBJECTS, COLUMNS_PER_SITE * len(SITES), CLUSTERS, wrong=0.2)
    tables = by_columns(codes, SITES)
    modes = ("plain", "masked", "blind") if options.full else ("plain", "masked")
    size = STARTS * CLUSTERS * OBJECTS * WORD
    with ExitStack() as stack:
        deployment = stack.enter_context(deployed(tables))
        raw = stack.enter_context(TlsEchoes(deployment.directory, SITES))
        bare = stack.enter_context(GrpcEchoes(deployment.directory, SITES))
        # Bytes that one site sends in an iteration, as many as it is sent; known once a job has run.
        sent: dict[str, float] = {}

        def iteration(privacy: str) -> dict[str, float]:
            cost = per_iteration(deployment, privacy=privacy, **KEYS)
            sent[privacy] = cost.bytes / len(SITES) / 2
            return {**cost.times(), "MB": sent[privacy] / 1e6}

        def echo(peer: TlsEchoes | GrpcEchoes) -> dict[str, float]:
            return peer.once(round(sent.get("plain", size)), 3)

        yield [
            Measurement(
                name="14 MB exchange",
                what=f"One iteration of a column-distributed BCE job, {len(SITES)} site processes, {OBJECTS:,} "
                f"shared objects, k = {CLUSTERS}, {STARTS} starts: {size / 1e6:.0f} MB to each site and back. Raw TLS "
                "and bare gRPC: as many bytes as the plain job, to and from as many processes. In one process: "
                "ce.simulate of the same job, nothing sent. MB: what one site sends.",
                unit="s",
                units={"MB": "MB"},
                subjects=(
                    Subject("raw TLS", partial(echo, raw), "limit"),
                    Subject("bare gRPC", partial(echo, bare), "limit"),
                    Subject("in one process", partial(_in_one_process, tables), "limit"),
                    *(Subject(privacy, partial(iteration, privacy)) for privacy in modes),
                ),
                claims=(
                    Ratio("throughput, of raw TLS", least=0.5, of="raw TLS: wall", to="plain: wall"),
                    Ratio("throughput, of bare gRPC", of="bare gRPC: wall", to="plain: wall"),
                    Ratio("bare gRPC's throughput, of raw TLS", of="raw TLS: wall", to="bare gRPC: wall"),
                    Ratio("raw TLS, of plain, CPU", of="raw TLS: CPU", to="plain: CPU"),
                    Ratio("masked, of plain", most=1.15, of="masked: wall", to="plain: wall"),
                    Ratio("masked, of plain, CPU", of="masked: CPU", to="plain: CPU"),
                    *(Ratio("blind, of plain", of="blind: wall", to="plain: wall") for _ in modes[2:]),
                    Ratio("computing alone, of plain, CPU", of="in one process: CPU", to="plain: CPU"),
                ),
                turns=options.turns(3, 10),
            ),
        ]


def _in_one_process(tables: Mapping[str, ce.LabelTable]) -> dict[str, float]:
    stamps: list[Stamp] = []
    ce.simulate(ce.Job(**KEYS), tables, privacy="plain", on_progress=lambda _: stamps.append(now()))
    return between(stamps)
