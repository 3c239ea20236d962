"""Sites in the same process, for estimators, `ce.simulate` and tests. Passes the same encoded messages as a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping


class InProcess:
    """Calls each site's handler directly."""

    def __init__(self, sites: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self._sites = dict(sites)
        self.bytes_sent = 0

    def exchange(self, tasks: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        for site, task in tasks.items():
            answer = self._sites[site](task)
            self.bytes_sent += len(task) + len(answer)
            yield site, answer
