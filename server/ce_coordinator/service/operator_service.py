"""OperatorService: an operator's calls, passed to the runner as events or answered from the machine's state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ce.errors import CeError
from ce.service.logs import fields
from ce.transport.grpc_errors import to_status
from ce_coordinator.core.events import CertificatesIssued, JobCancelled, JobSubmitted
from ce_coordinator.service.authorisation import Authorisation, Caller
from ce_coordinator.service.job_status import job_status, site_statuses
from ce_coordinator.service.runner import Runner
from ce_proto.v1 import operator_pb2 as pb
from ce_proto.v1 import operator_pb2_grpc

log = logging.getLogger("ce_coordinator.service.operator_service")

#: Seconds between two updates to a watcher: at least this many ...
SHORTEST_S = 0.1
#: ... and at most this many, so that a watcher sees time pass.
LONGEST_S = 1.0


class OperatorService(operator_pb2_grpc.OperatorServiceServicer):
    """See proto/ce_proto/v1/operator.proto."""

    def __init__(self, runner: Runner, access: Authorisation, issued: Callable[[], dict[str, str]]) -> None:
        self._runner = runner
        self._access = access
        self._issued = issued  # certificates of sites: fingerprints by name

    async def SubmitJob(self, request: pb.SubmitJobRequest, context: Any) -> pb.JobStatus:
        async with self._answering(context) as caller:
            self._runner.handle(CertificatesIssued(self._issued()))
            self._runner.handle(JobSubmitted(request.definition, request.token, caller.name))
            record = self._runner.machine.jobs.submitted(request.token)
            assert record is not None
            return self._status(record.name)

    async def GetJob(self, request: pb.GetJobRequest, context: Any) -> pb.JobStatus:
        async with self._answering(context):
            return self._status(request.job)

    async def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> pb.ListJobsResponse:
        async with self._answering(context):
            newest = sorted(self._runner.machine.records.values(), key=lambda record: -record.submitted_at)
            jobs = [self._status(record.name) for record in newest]
            for job in jobs:
                job.ClearField("bound_path")
            return pb.ListJobsResponse(jobs=jobs)

    async def WatchJob(self, request: pb.WatchJobRequest, context: Any) -> None:
        async with self._answering(context) as caller:
            while True:
                self._access.check(caller)
                status = self._status(request.job)
                await context.write(status)
                if status.state in ("done", "failed", "cancelled"):
                    return
                await self._runner.changed(request.job, LONGEST_S)
                await asyncio.sleep(SHORTEST_S)

    async def CancelJob(self, request: pb.CancelJobRequest, context: Any) -> pb.JobStatus:
        async with self._answering(context) as caller:
            self._runner.handle(JobCancelled(request.job, caller.name))
            return self._status(request.job)

    async def GetResult(self, request: pb.GetResultRequest, context: Any) -> pb.JobResult:
        async with self._answering(context):
            return pb.JobResult(job=request.job, report=self._runner.machine.jobs.result(request.job))

    async def ListSites(self, request: pb.ListSitesRequest, context: Any) -> pb.ListSitesResponse:
        async with self._answering(context):
            self._runner.handle(CertificatesIssued(self._issued()))
            return pb.ListSitesResponse(sites=site_statuses(self._runner.machine))

    async def Drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainResponse:
        async with self._answering(context) as caller:
            log.info("drained by an operator", extra=fields(operator=caller.name))
            self._runner.stopping.set()
            await self._runner.drained.wait()
            return pb.DrainResponse(jobs=sum(not r.ended for r in self._runner.machine.records.values()))

    def _status(self, job: str) -> pb.JobStatus:
        return job_status(self._runner.machine, job, self._runner.now())

    @asynccontextmanager
    async def _answering(self, context: Any) -> AsyncIterator[Caller]:
        """Admits operators only, and turns errors into statuses."""
        try:
            yield self._access.admit(context, "operator")
        except CeError as error:
            code, details, trailer = to_status(error)
            log.warning("operator refused", extra=fields(peer=context.peer(), code=code.name, reason=details))
            await context.abort(code, details, trailer)
