from ce_proto.v1 import arrays_pb2 as _arrays_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Feature(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FEATURE_UNSPECIFIED: _ClassVar[Feature]
    FEATURE_CHECKPOINTS: _ClassVar[Feature]
    FEATURE_BLIND: _ClassVar[Feature]
    FEATURE_SOFT_LABELS: _ClassVar[Feature]
    FEATURE_SEALED: _ClassVar[Feature]
    FEATURE_SINGLE: _ClassVar[Feature]

class ColumnKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLUMN_KIND_UNSPECIFIED: _ClassVar[ColumnKind]
    COLUMN_KIND_CLUSTERING: _ClassVar[ColumnKind]
    COLUMN_KIND_CLASSIFIER: _ClassVar[ColumnKind]

class CategoryKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CATEGORY_KIND_UNSPECIFIED: _ClassVar[CategoryKind]
    CATEGORY_KIND_INTEGER: _ClassVar[CategoryKind]
    CATEGORY_KIND_TEXT: _ClassVar[CategoryKind]

class Step(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_UNSPECIFIED: _ClassVar[Step]
    STEP_OPEN: _ClassVar[Step]
    STEP_SUMS: _ClassVar[Step]
    STEP_OBJECTS: _ClassVar[Step]
    STEP_COLUMNS: _ClassVar[Step]
    STEP_CLUSTERINGS_ONLY: _ClassVar[Step]
    STEP_FINISH: _ClassVar[Step]
    STEP_KEYS: _ClassVar[Step]
    STEP_DECIDE: _ClassVar[Step]
    STEP_SHARES: _ClassVar[Step]
    STEP_VOTES: _ClassVar[Step]
    STEP_COUNTS: _ClassVar[Step]
    STEP_MEET: _ClassVar[Step]
    STEP_MASK: _ClassVar[Step]
    STEP_VERIFY: _ClassVar[Step]
    STEP_COMMIT: _ClassVar[Step]
    STEP_RELEASE: _ClassVar[Step]
    STEP_SCORE: _ClassVar[Step]
    STEP_COMPARE: _ClassVar[Step]
    STEP_SETTLE: _ClassVar[Step]
    STEP_PROVE: _ClassVar[Step]
    STEP_REVEAL: _ClassVar[Step]
FEATURE_UNSPECIFIED: Feature
FEATURE_CHECKPOINTS: Feature
FEATURE_BLIND: Feature
FEATURE_SOFT_LABELS: Feature
FEATURE_SEALED: Feature
FEATURE_SINGLE: Feature
COLUMN_KIND_UNSPECIFIED: ColumnKind
COLUMN_KIND_CLUSTERING: ColumnKind
COLUMN_KIND_CLASSIFIER: ColumnKind
CATEGORY_KIND_UNSPECIFIED: CategoryKind
CATEGORY_KIND_INTEGER: CategoryKind
CATEGORY_KIND_TEXT: CategoryKind
STEP_UNSPECIFIED: Step
STEP_OPEN: Step
STEP_SUMS: Step
STEP_OBJECTS: Step
STEP_COLUMNS: Step
STEP_CLUSTERINGS_ONLY: Step
STEP_FINISH: Step
STEP_KEYS: Step
STEP_DECIDE: Step
STEP_SHARES: Step
STEP_VOTES: Step
STEP_COUNTS: Step
STEP_MEET: Step
STEP_MASK: Step
STEP_VERIFY: Step
STEP_COMMIT: Step
STEP_RELEASE: Step
STEP_SCORE: Step
STEP_COMPARE: Step
STEP_SETTLE: Step
STEP_PROVE: Step
STEP_REVEAL: Step

class SiteFrame(_message.Message):
    __slots__ = ("hello", "key_share", "encrypted_keys", "enrolment", "ready", "answer", "more", "refusal", "goodbye", "leaving", "letters")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    KEY_SHARE_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTED_KEYS_FIELD_NUMBER: _ClassVar[int]
    ENROLMENT_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    key_share: KeyShare
    encrypted_keys: EncryptedKeys
    enrolment: Enrolment
    ready: Ready
    answer: Answer
    more: More
    refusal: Refusal
    goodbye: Goodbye
    leaving: Leaving
    letters: Letters
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., key_share: _Optional[_Union[KeyShare, _Mapping]] = ..., encrypted_keys: _Optional[_Union[EncryptedKeys, _Mapping]] = ..., enrolment: _Optional[_Union[Enrolment, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., more: _Optional[_Union[More, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., letters: _Optional[_Union[Letters, _Mapping]] = ...) -> None: ...

class CoordinatorFrame(_message.Message):
    __slots__ = ("welcome", "offer", "peers", "encrypted_key", "alignment", "task", "more", "ended", "goodbye", "introduction", "letters")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTED_KEY_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    INTRODUCTION_FIELD_NUMBER: _ClassVar[int]
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    offer: Offer
    peers: Peers
    encrypted_key: EncryptedKey
    alignment: Alignment
    task: Task
    more: More
    ended: Ended
    goodbye: Goodbye
    introduction: Introduction
    letters: Letters
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., peers: _Optional[_Union[Peers, _Mapping]] = ..., encrypted_key: _Optional[_Union[EncryptedKey, _Mapping]] = ..., alignment: _Optional[_Union[Alignment, _Mapping]] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., more: _Optional[_Union[More, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., introduction: _Optional[_Union[Introduction, _Mapping]] = ..., letters: _Optional[_Union[Letters, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("site", "protocol", "software", "instance", "held", "probe", "lacks")
    SITE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    LACKS_FIELD_NUMBER: _ClassVar[int]
    site: str
    protocol: int
    software: str
    instance: bytes
    held: _containers.RepeatedCompositeFieldContainer[Held]
    probe: bool
    lacks: _containers.RepeatedScalarFieldContainer[Feature]
    def __init__(self, site: _Optional[str] = ..., protocol: _Optional[int] = ..., software: _Optional[str] = ..., instance: _Optional[bytes] = ..., held: _Optional[_Iterable[_Union[Held, _Mapping]]] = ..., probe: _Optional[bool] = ..., lacks: _Optional[_Iterable[_Union[Feature, str]]] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("job", "epoch")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("coordinator", "protocol", "software", "time_s")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    coordinator: str
    protocol: int
    software: str
    time_s: float
    def __init__(self, coordinator: _Optional[str] = ..., protocol: _Optional[int] = ..., software: _Optional[str] = ..., time_s: _Optional[float] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("job", "epoch", "definition", "roster")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    definition: bytes
    roster: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., definition: _Optional[bytes] = ..., roster: _Optional[_Iterable[str]] = ...) -> None: ...

class KeyShare(_message.Message):
    __slots__ = ("job", "epoch", "public_key", "certificate", "signature")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    public_key: bytes
    certificate: bytes
    signature: bytes
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., public_key: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Peers(_message.Message):
    __slots__ = ("job", "epoch", "peers")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("site", "public_key", "certificate", "signature")
    SITE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    site: str
    public_key: bytes
    certificate: bytes
    signature: bytes
    def __init__(self, site: _Optional[str] = ..., public_key: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class EncryptedKeys(_message.Message):
    __slots__ = ("job", "epoch", "keys")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    keys: _containers.RepeatedCompositeFieldContainer[EncryptedKey]
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[EncryptedKey, _Mapping]]] = ...) -> None: ...

class EncryptedKey(_message.Message):
    __slots__ = ("job", "epoch", "site", "nonce", "ciphertext")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    CIPHERTEXT_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    site: str
    nonce: bytes
    ciphertext: bytes
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., site: _Optional[str] = ..., nonce: _Optional[bytes] = ..., ciphertext: _Optional[bytes] = ...) -> None: ...

class Enrolment(_message.Message):
    __slots__ = ("job", "epoch", "objects", "columns", "pseudonym_digest", "signature", "chunks", "revision", "min_cluster", "pseudonym_salt", "key_commitment", "min_sites", "min_objects", "excluded")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PSEUDONYM_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MIN_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    PSEUDONYM_SALT_FIELD_NUMBER: _ClassVar[int]
    KEY_COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    MIN_SITES_FIELD_NUMBER: _ClassVar[int]
    MIN_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    objects: int
    columns: _containers.RepeatedCompositeFieldContainer[ColumnClaim]
    pseudonym_digest: bytes
    signature: bytes
    chunks: _arrays_pb2.ArrayChunks
    revision: int
    min_cluster: int
    pseudonym_salt: bytes
    key_commitment: bytes
    min_sites: int
    min_objects: int
    excluded: _containers.RepeatedCompositeFieldContainer[Exclusion]
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., objects: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[ColumnClaim, _Mapping]]] = ..., pseudonym_digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., chunks: _Optional[_Union[_arrays_pb2.ArrayChunks, _Mapping]] = ..., revision: _Optional[int] = ..., min_cluster: _Optional[int] = ..., pseudonym_salt: _Optional[bytes] = ..., key_commitment: _Optional[bytes] = ..., min_sites: _Optional[int] = ..., min_objects: _Optional[int] = ..., excluded: _Optional[_Iterable[_Union[Exclusion, _Mapping]]] = ...) -> None: ...

class Exclusion(_message.Message):
    __slots__ = ("rule", "objects", "columns", "labels")
    RULE_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    rule: str
    objects: int
    columns: int
    labels: int
    def __init__(self, rule: _Optional[str] = ..., objects: _Optional[int] = ..., columns: _Optional[int] = ..., labels: _Optional[int] = ...) -> None: ...

class ColumnClaim(_message.Message):
    __slots__ = ("name", "kind", "soft", "categories_are", "labels", "category_count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SOFT_FIELD_NUMBER: _ClassVar[int]
    CATEGORIES_ARE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: ColumnKind
    soft: bool
    categories_are: CategoryKind
    labels: int
    category_count: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[ColumnKind, str]] = ..., soft: _Optional[bool] = ..., categories_are: _Optional[_Union[CategoryKind, str]] = ..., labels: _Optional[int] = ..., category_count: _Optional[int] = ...) -> None: ...

class Introduction(_message.Message):
    __slots__ = ("job", "epoch", "revision", "enrolments")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ENROLMENTS_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    revision: int
    enrolments: _containers.RepeatedCompositeFieldContainer[EnrolmentSummary]
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., revision: _Optional[int] = ..., enrolments: _Optional[_Iterable[_Union[EnrolmentSummary, _Mapping]]] = ...) -> None: ...

class Letters(_message.Message):
    __slots__ = ("job", "epoch", "revision", "stage", "vocabularies", "chunks")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARIES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    revision: int
    stage: int
    vocabularies: _containers.RepeatedCompositeFieldContainer[Vocabulary]
    chunks: _arrays_pb2.ArrayChunks
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., revision: _Optional[int] = ..., stage: _Optional[int] = ..., vocabularies: _Optional[_Iterable[_Union[Vocabulary, _Mapping]]] = ..., chunks: _Optional[_Union[_arrays_pb2.ArrayChunks, _Mapping]] = ...) -> None: ...

class Vocabulary(_message.Message):
    __slots__ = ("column", "categories")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    CATEGORIES_FIELD_NUMBER: _ClassVar[int]
    column: str
    categories: int
    def __init__(self, column: _Optional[str] = ..., categories: _Optional[int] = ...) -> None: ...

class Alignment(_message.Message):
    __slots__ = ("job", "epoch", "sizes", "blocks", "columns", "chunks", "revision", "needs_two_exchanges", "shared_by_all", "private_objects", "other_columns")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    NEEDS_TWO_EXCHANGES_FIELD_NUMBER: _ClassVar[int]
    SHARED_BY_ALL_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    OTHER_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    sizes: Sizes
    blocks: _containers.RepeatedCompositeFieldContainer[BlockView]
    columns: _containers.RepeatedCompositeFieldContainer[ColumnView]
    chunks: _arrays_pb2.ArrayChunks
    revision: int
    needs_two_exchanges: bool
    shared_by_all: bool
    private_objects: _containers.RepeatedScalarFieldContainer[int]
    other_columns: _containers.RepeatedCompositeFieldContainer[ColumnView]
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., sizes: _Optional[_Union[Sizes, _Mapping]] = ..., blocks: _Optional[_Iterable[_Union[BlockView, _Mapping]]] = ..., columns: _Optional[_Iterable[_Union[ColumnView, _Mapping]]] = ..., chunks: _Optional[_Union[_arrays_pb2.ArrayChunks, _Mapping]] = ..., revision: _Optional[int] = ..., needs_two_exchanges: _Optional[bool] = ..., shared_by_all: _Optional[bool] = ..., private_objects: _Optional[_Iterable[int]] = ..., other_columns: _Optional[_Iterable[_Union[ColumnView, _Mapping]]] = ...) -> None: ...

class EnrolmentSummary(_message.Message):
    __slots__ = ("site", "objects", "columns", "pseudonym_digest", "signature", "revision", "key_commitment", "min_sites", "min_objects")
    SITE_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PSEUDONYM_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    KEY_COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    MIN_SITES_FIELD_NUMBER: _ClassVar[int]
    MIN_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    site: str
    objects: int
    columns: _containers.RepeatedCompositeFieldContainer[ColumnSummary]
    pseudonym_digest: bytes
    signature: bytes
    revision: int
    key_commitment: bytes
    min_sites: int
    min_objects: int
    def __init__(self, site: _Optional[str] = ..., objects: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[ColumnSummary, _Mapping]]] = ..., pseudonym_digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., revision: _Optional[int] = ..., key_commitment: _Optional[bytes] = ..., min_sites: _Optional[int] = ..., min_objects: _Optional[int] = ...) -> None: ...

class ColumnSummary(_message.Message):
    __slots__ = ("name", "kind", "soft", "categories_are", "categories", "labels")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SOFT_FIELD_NUMBER: _ClassVar[int]
    CATEGORIES_ARE_FIELD_NUMBER: _ClassVar[int]
    CATEGORIES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: ColumnKind
    soft: bool
    categories_are: CategoryKind
    categories: int
    labels: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[ColumnKind, str]] = ..., soft: _Optional[bool] = ..., categories_are: _Optional[_Union[CategoryKind, str]] = ..., categories: _Optional[int] = ..., labels: _Optional[int] = ...) -> None: ...

class Sizes(_message.Message):
    __slots__ = ("objects", "clusterings", "classifiers", "categories")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    CLUSTERINGS_FIELD_NUMBER: _ClassVar[int]
    CLASSIFIERS_FIELD_NUMBER: _ClassVar[int]
    CATEGORIES_FIELD_NUMBER: _ClassVar[int]
    objects: int
    clusterings: int
    classifiers: int
    categories: int
    def __init__(self, objects: _Optional[int] = ..., clusterings: _Optional[int] = ..., classifiers: _Optional[int] = ..., categories: _Optional[int] = ...) -> None: ...

class BlockView(_message.Message):
    __slots__ = ("index", "members", "size")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    index: int
    members: _containers.RepeatedScalarFieldContainer[str]
    size: int
    def __init__(self, index: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ..., size: _Optional[int] = ...) -> None: ...

class ColumnView(_message.Message):
    __slots__ = ("index", "name", "kind", "holders", "category_count")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_COUNT_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    kind: ColumnKind
    holders: _containers.RepeatedScalarFieldContainer[str]
    category_count: int
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ..., kind: _Optional[_Union[ColumnKind, str]] = ..., holders: _Optional[_Iterable[str]] = ..., category_count: _Optional[int] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("job", "epoch", "revision", "checkpoints", "excluded")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    revision: int
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    excluded: _containers.RepeatedCompositeFieldContainer[Exclusion]
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., revision: _Optional[int] = ..., checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ..., excluded: _Optional[_Iterable[_Union[Exclusion, _Mapping]]] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("origin", "round")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    origin: int
    round: int
    def __init__(self, origin: _Optional[int] = ..., round: _Optional[int] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("job", "epoch", "round", "step", "stage", "iteration", "starts", "retry", "digest", "chunks", "checkpoint", "resume", "stop", "asked")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    round: int
    step: Step
    stage: int
    iteration: int
    starts: _containers.RepeatedScalarFieldContainer[int]
    retry: _containers.RepeatedScalarFieldContainer[int]
    digest: bytes
    chunks: _arrays_pb2.ArrayChunks
    checkpoint: int
    resume: int
    stop: _containers.RepeatedScalarFieldContainer[int]
    asked: _containers.RepeatedCompositeFieldContainer[AskedArray]
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., step: _Optional[_Union[Step, str]] = ..., stage: _Optional[int] = ..., iteration: _Optional[int] = ..., starts: _Optional[_Iterable[int]] = ..., retry: _Optional[_Iterable[int]] = ..., digest: _Optional[bytes] = ..., chunks: _Optional[_Union[_arrays_pb2.ArrayChunks, _Mapping]] = ..., checkpoint: _Optional[int] = ..., resume: _Optional[int] = ..., stop: _Optional[_Iterable[int]] = ..., asked: _Optional[_Iterable[_Union[AskedArray, _Mapping]]] = ...) -> None: ...

class AskedArray(_message.Message):
    __slots__ = ("name", "shape", "fraction_bits", "word_bits")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    FRACTION_BITS_FIELD_NUMBER: _ClassVar[int]
    WORD_BITS_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    fraction_bits: int
    word_bits: int
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., fraction_bits: _Optional[int] = ..., word_bits: _Optional[int] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("job", "epoch", "round", "step", "starts", "task_digest", "chunks", "next_step", "state", "ledger_head")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    TASK_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_HEAD_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    round: int
    step: Step
    starts: _containers.RepeatedScalarFieldContainer[int]
    task_digest: bytes
    chunks: _arrays_pb2.ArrayChunks
    next_step: NextStep
    state: bytes
    ledger_head: bytes
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., step: _Optional[_Union[Step, str]] = ..., starts: _Optional[_Iterable[int]] = ..., task_digest: _Optional[bytes] = ..., chunks: _Optional[_Union[_arrays_pb2.ArrayChunks, _Mapping]] = ..., next_step: _Optional[_Union[NextStep, _Mapping]] = ..., state: _Optional[bytes] = ..., ledger_head: _Optional[bytes] = ...) -> None: ...

class NextStep(_message.Message):
    __slots__ = ("step", "stage")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    step: Step
    stage: int
    def __init__(self, step: _Optional[_Union[Step, str]] = ..., stage: _Optional[int] = ...) -> None: ...

class More(_message.Message):
    __slots__ = ("job", "epoch", "chunks")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    chunks: _arrays_pb2.ArrayChunks
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., chunks: _Optional[_Union[_arrays_pb2.ArrayChunks, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("job", "epoch", "exit_code", "rule", "sentence")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    exit_code: int
    rule: str
    sentence: str
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., exit_code: _Optional[int] = ..., rule: _Optional[str] = ..., sentence: _Optional[str] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("job", "epoch", "state", "reason", "rule", "exit_code")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    state: str
    reason: str
    rule: str
    exit_code: int
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., rule: _Optional[str] = ..., exit_code: _Optional[int] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
