from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitJobRequest(_message.Message):
    __slots__ = ("token", "definition")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    token: str
    definition: bytes
    def __init__(self, token: _Optional[str] = ..., definition: _Optional[bytes] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ...) -> None: ...

class WatchJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class GetResultRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class ListSitesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSitesResponse(_message.Message):
    __slots__ = ("sites",)
    SITES_FIELD_NUMBER: _ClassVar[int]
    sites: _containers.RepeatedCompositeFieldContainer[SiteStatus]
    def __init__(self, sites: _Optional[_Iterable[_Union[SiteStatus, _Mapping]]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: int
    def __init__(self, jobs: _Optional[int] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job", "state", "model", "privacy", "operator", "epoch", "submitted_s", "changed_s", "deadline_s", "sites", "layout", "objects", "iteration", "max_iterations", "starts_running", "bound_path", "exchanges", "exchanges_per_s", "bytes", "reason", "rule", "exit_code", "now_s", "exchanges_kept", "left_behind", "objects_in_fit", "excluded", "phase", "warnings")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_S_FIELD_NUMBER: _ClassVar[int]
    CHANGED_S_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    MAX_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    STARTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    BOUND_PATH_FIELD_NUMBER: _ClassVar[int]
    EXCHANGES_FIELD_NUMBER: _ClassVar[int]
    EXCHANGES_PER_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    NOW_S_FIELD_NUMBER: _ClassVar[int]
    EXCHANGES_KEPT_FIELD_NUMBER: _ClassVar[int]
    LEFT_BEHIND_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_IN_FIT_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    job: str
    state: str
    model: str
    privacy: str
    operator: str
    epoch: int
    submitted_s: float
    changed_s: float
    deadline_s: float
    sites: _containers.RepeatedCompositeFieldContainer[SiteStatus]
    layout: str
    objects: int
    iteration: int
    max_iterations: int
    starts_running: int
    bound_path: _containers.RepeatedScalarFieldContainer[float]
    exchanges: int
    exchanges_per_s: float
    bytes: int
    reason: str
    rule: str
    exit_code: int
    now_s: float
    exchanges_kept: int
    left_behind: _containers.RepeatedScalarFieldContainer[str]
    objects_in_fit: int
    excluded: _containers.RepeatedCompositeFieldContainer[SiteExclusion]
    phase: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[str] = ..., state: _Optional[str] = ..., model: _Optional[str] = ..., privacy: _Optional[str] = ..., operator: _Optional[str] = ..., epoch: _Optional[int] = ..., submitted_s: _Optional[float] = ..., changed_s: _Optional[float] = ..., deadline_s: _Optional[float] = ..., sites: _Optional[_Iterable[_Union[SiteStatus, _Mapping]]] = ..., layout: _Optional[str] = ..., objects: _Optional[int] = ..., iteration: _Optional[int] = ..., max_iterations: _Optional[int] = ..., starts_running: _Optional[int] = ..., bound_path: _Optional[_Iterable[float]] = ..., exchanges: _Optional[int] = ..., exchanges_per_s: _Optional[float] = ..., bytes: _Optional[int] = ..., reason: _Optional[str] = ..., rule: _Optional[str] = ..., exit_code: _Optional[int] = ..., now_s: _Optional[float] = ..., exchanges_kept: _Optional[int] = ..., left_behind: _Optional[_Iterable[str]] = ..., objects_in_fit: _Optional[int] = ..., excluded: _Optional[_Iterable[_Union[SiteExclusion, _Mapping]]] = ..., phase: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class SiteExclusion(_message.Message):
    __slots__ = ("site", "rule", "objects", "columns", "labels")
    SITE_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    site: str
    rule: str
    objects: int
    columns: int
    labels: int
    def __init__(self, site: _Optional[str] = ..., rule: _Optional[str] = ..., objects: _Optional[int] = ..., columns: _Optional[int] = ..., labels: _Optional[int] = ...) -> None: ...

class SiteStatus(_message.Message):
    __slots__ = ("site", "connected", "last_seen_s", "fingerprint", "awaited", "objects", "software")
    SITE_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_S_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    site: str
    connected: bool
    last_seen_s: float
    fingerprint: str
    awaited: bool
    objects: int
    software: str
    def __init__(self, site: _Optional[str] = ..., connected: _Optional[bool] = ..., last_seen_s: _Optional[float] = ..., fingerprint: _Optional[str] = ..., awaited: _Optional[bool] = ..., objects: _Optional[int] = ..., software: _Optional[str] = ...) -> None: ...

class JobResult(_message.Message):
    __slots__ = ("job", "report")
    JOB_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    job: str
    report: bytes
    def __init__(self, job: _Optional[str] = ..., report: _Optional[bytes] = ...) -> None: ...
