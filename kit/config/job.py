"""`jobs/<name>.yaml`: the definition of a job."""

from __future__ import annotations

import json
from typing import Any, Literal, cast

from pydantic import Field, field_validator, model_validator

from kit.config.command import check_script, script_words
from kit.config.data import DataSets, to_data_sets
from kit.config.fields import (
    AbsolutePath,
    Duration,
    Image,
    NcclVariables,
    Patience,
    Section,
    User,
    wrong,
)
from kit.config.folder import CodeKey
from kit.config.mounts import Mounts, to_mounts
from kit.config.notify import Notify, to_receivers
from kit.config.queue import GpusKey, QueueKey, check_queued, to_queued
from kit.config.resources import JobHostsSection, LimitsSection, RendezvousSection, to_hosts
from kit.config.session import OF_OTHERS, SessionSection, to_session
from kit.config.train import (
    CheckpointSection,
    ExchangeSection,
    FaultsSection,
    MetricsSection,
    ParallelSection,
    TrainSection,
    to_value,
)
from kit.config.variables import Environment, Secrets, to_secrets
from kit.jobs import Framework, Job
from kit.model import Limits
from trainer.contract.code import WORKSPACE
from trainer.contract.job import Checkpoint, Exchange, Faults, Parallel, Train
from trainer.contract.models import OWN_DATA, of_torchvision
from trainer.contract.own import is_own

OF_TRAIN = {
    "exchange": "leave it out: a script exchanges by itself",
    "parallel": "leave it out: a script divides its model by itself",
    "faults": "leave it out: torchrun restarts a script",
}
OF_COMMAND = {
    "framework": "leave it out: `train` is PyTorch's",
    "working_dir": "leave it out",
    "quiet": "leave it out: `train` notices a worker that hangs after 10 s",
}
"""Keys that only one kind of work has, and their correction in the other kind."""


class JobSection(Section):
    """A job: `train` for the built-in training, `command` for a script, or a `session`."""

    image: Image
    train: TrainSection | None = Field(
        None, examples=[{"dataset": "mnist", "model": "cnn", "epochs": 10, "batch_size": 64}]
    )
    command: list[str] | None = Field(
        None,
        min_length=1,
        examples=[["ddp.py", "50", "10", "--batch_size", "256"]],
        description="A script for torchrun and its arguments; for a module begin with `-m`",
    )
    session: SessionSection | None = Field(
        None,
        examples=[{"keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA… anna@laptop"]}],
        description="A container in which people work; `kit session start` writes it",
    )
    framework: Literal["pytorch", "tensorflow"] = Field(
        "pytorch",
        description="pytorch: torchrun starts `command` once for each GPU. tensorflow: kit starts "
        "it once on each host, with all its GPUs and, for several hosts, TF_CONFIG",
    )
    setup: list[str] = Field(
        [],
        examples=[["pip install -r requirements.txt"]],
        description="Lines for sh. Each container runs them once, in `working_dir`, before the "
        "processes of `command` start",
    )
    working_dir: AbsolutePath | None = Field(None, description="The folder in which `command` runs")
    reference_batch: int | None = Field(
        None,
        ge=1,
        examples=[256],
        description="The global batch for which the learning rate was tuned; only `kit plan` uses "
        "it",
    )
    batch_size: int | None = Field(
        None,
        ge=1,
        examples=[256],
        description="Batch size of `command` per GPU; only `kit plan` uses it",
    )
    parameters: int | None = Field(
        None,
        ge=1,
        examples=[11_173_962],
        description="Number of parameters of a model whose size kit does not know: with `command`, "
        "with your own model or data, or a model of torchvision; only `kit plan` uses it",
    )
    step_seconds: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        examples=[0.06],
        description="Computing time of a step, which the first run prints; only `kit plan` uses it",
    )
    exchange: ExchangeSection = Field(
        ExchangeSection(), examples=[{"mode": "diloco", "every_steps": 128, "compression": "fp16"}]
    )
    metrics: MetricsSection = Field(MetricsSection(), examples=[{"port": 9500}])
    checkpoint: CheckpointSection = Field(
        CheckpointSection(), examples=[{"every_epochs": 1, "keep": 3}]
    )
    parallel: ParallelSection = Field(ParallelSection(), examples=[{"shard": 4}])
    faults: FaultsSection = Field(
        FaultsSection(), examples=[{"memory": "leave_out", "max_restarts": 5}]
    )
    hosts: JobHostsSection = Field(JobHostsSection(), examples=[{"names": ["pc1"]}])
    queue: QueueKey = None
    gpus: GpusKey = None
    data: DataSets = Field([])
    code: CodeKey = Field(
        default=cast(CodeKey, None),  # A union with None cannot have tags.
        examples=[".", {"folder": "../research", "exclude": ["runs/"]}],
        description="A folder with code, relative to the inventory's. `kit deploy` sends it to "
        f"the hosts, where it is {WORKSPACE}",
    )
    mounts: Mounts = Field([], examples=[[{"bind": "/srv/data", "to": "/data"}]])
    environment: Environment = Field({})
    secrets: Secrets = Field({})
    nccl: NcclVariables = Field({}, description="`NCCL_…` variables of this job")
    limits: LimitsSection = Field(LimitsSection(), examples=[{"shared_memory": "16GiB"}])
    rendezvous: RendezvousSection = Field(RendezvousSection(), examples=[{"port": 29400}])
    stop_grace_period: Duration = Field(
        60, description="Time between the stop signal and the kill, for a last checkpoint"
    )
    quiet: Patience | None = Field(
        None,
        examples=["10m", 0],
        description="A rank of `command` is silent if for this time it has printed and saved "
        "nothing, and its processor and GPU were idle; 0: never; default: 10m",
    )
    max_duration: Duration | None = Field(
        None,
        examples=["12h"],
        description="The job ends this long after its first start, as by `kit stop`: it saves a "
        "last checkpoint; default: never",
    )
    idle: Duration | None = Field(
        None,
        examples=["30m"],
        description="The job ends when its hosts have computed nothing for this time, by the "
        "utilization of their GPUs; default: never",
    )
    notify: Notify = Field([], description="Receivers of this job, beside the inventory's")
    user: User | None = Field(
        None,
        examples=["1000:1000"],
        description="User of the containers. Users except root have and gain no capabilities, "
        "but IPC_LOCK with `infiniband`. Default: for `train` nobody, 65534:65534, or the image's "
        "user with writable `mounts`; for `command` the image's user, with Docker's default "
        "capabilities",
    )

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, command: object) -> object:
        return script_words(command)

    @field_validator("setup", mode="before")
    @classmethod
    def _lines(cls, setup: object) -> object:
        if isinstance(setup, str):
            lines = [line for line in setup.splitlines() if line.strip()]
            raise wrong("is a list of lines", f"write `setup: {json.dumps(lines)}`")
        return setup

    @field_validator("setup")
    @classmethod
    def _not_empty(cls, setup: list[str]) -> list[str]:
        for index, line in enumerate(setup):
            if not line.strip() or "\0" in line:
                raise wrong("is not a command", "leave it out", index)
        return setup

    @field_validator("command")
    @classmethod
    def _script(cls, command: list[str] | None) -> list[str] | None:
        if command:
            check_script(command)
        return command

    @field_validator("data", mode="before")
    @classmethod
    def _listed(cls, data: object) -> object:
        if isinstance(data, str):
            raise wrong("is a list", f"write `data: [{data}]`")
        return data

    @field_validator("data")
    @classmethod
    def _once(cls, data: list[Any]) -> list[Any]:
        names = [each.name for each in to_data_sets(data)]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise wrong(f"{name} is named twice", "keep one of the two", index)
        return data

    @model_validator(mode="after")
    def _one_work(self) -> JobSection:
        work = {"train": self.train, "command": self.command, "session": self.session}
        given = [name for name, section in work.items() if section is not None]
        if len(given) != 1:
            both = f"{' and '.join(given)} are both given" if given else "there is nothing to run"
            raise wrong(both, "write exactly one of `train:`, `command:` and `session:`")
        for index, mount in enumerate(self.mounts):
            if self.code and f"{mount.to}/".startswith(f"{WORKSPACE}/"):
                what = f"{WORKSPACE} holds the folder of `code:`"
                raise wrong(what, "choose another folder", "mounts", index, "to")
            if (self.data or self.code) and f"{mount.to}/".startswith("/datasets/"):
                what = "/datasets holds the data sets of `data:`"
                raise wrong(what, "choose another folder", "mounts", index, "to")
            if self.train and f"{mount.to}/".startswith("/opt/kit/"):
                what = "/opt/kit holds the trainer that `train` runs"
                raise wrong(what, "choose another folder", "mounts", index, "to")
        if self.train is not None and self.batch_size is not None:
            raise wrong("is for `command`", "keep the one in `train:`", "batch_size")
        train = self.train
        elsewhere = train and (of_torchvision(train.model) or is_own(train.model))
        if train and not elsewhere and train.dataset not in OWN_DATA and self.parameters:
            raise wrong("is for `command`", "leave it out: kit knows its own models", "parameters")
        return self

    @model_validator(mode="after")
    def _one_stream(self) -> JobSection:
        train = self.train
        streamed = [i for i, each in enumerate(to_data_sets(self.data)) if each.stream]
        if train is None or not streamed:
            return self
        if train.dataset != "shards":
            what = f"the built-in training streams `dataset: shards`, not {train.dataset}"
            raise wrong(what, "leave it out: each host fetches it", "data", streamed[0], "stream")
        if len(streamed) > 1:
            what = "the built-in training reads one data set"
            raise wrong(what, "keep one of them", "data", streamed[1], "stream")
        for key in ("url", "path"):
            if getattr(train, key):
                what = "the shards are those of the streamed data set"
                raise wrong(what, "leave it out", "train", key)
        return self

    @model_validator(mode="after")
    def _in_workspace(self) -> JobSection:
        if self.code and not f"{self.working_dir or WORKSPACE}/".startswith(f"{WORKSPACE}/"):
            what = f"the folder of `code:` is {WORKSPACE}"
            raise wrong(what, f"write a folder in it, as {WORKSPACE}/examples", "working_dir")
        return self

    @model_validator(mode="after")
    def _session_alone(self) -> JobSection:
        for key in OF_OTHERS:
            if self.session is not None and key in self.model_fields_set:
                raise wrong("is not for a session", "leave it out", key)
        if self.session is not None and self.hosts.min is not None:
            raise wrong("a session has one host", "leave it out", "hosts", "min")
        return self

    @model_validator(mode="after")
    def _queued(self) -> JobSection:
        check_queued(self.queue, self.hosts, self.gpus, {*self.model_fields_set, self.framework})
        return self

    @model_validator(mode="after")
    def _ends_by_itself(self) -> JobSection:
        if self.session is not None:  # Its time can be extended.
            return self
        if self.max_duration and self.idle and self.idle >= self.max_duration:
            what = "is not shorter than `max_duration`, after which the job ends anyway"
            raise wrong(what, "leave it out, or write a shorter time", "idle")
        return self

    @model_validator(mode="after")
    def _train_alone(self) -> JobSection:
        only, fixes = ("`command`", OF_COMMAND) if self.train else ("`train`", OF_TRAIN)
        for key in (key for key in fixes if key in self.model_fields_set):
            raise wrong(f"is for {only}", fixes[key], key)
        if self.train is not None and self.setup:
            what = "is for `command`: containers of `train` are read-only"
            raise wrong(what, "build an image that has it", "setup")
        for name in self.secrets:
            if name in self.environment:
                raise wrong("is in `environment` too", "keep one of the two", "secrets", name)
        if self.metrics.port is not None and self.metrics.port == self.rendezvous.port:
            raise wrong(
                f"{self.metrics.port} is the coordinator's port already",
                f"write for example {9500 if self.metrics.port != 9500 else 9501}",
                "metrics",
                "port",
            )
        return self


def to_job(section: JobSection, name: str, file: str) -> Job:
    """Convert the validated file `file` to the job `name`."""
    limits = section.limits
    return Job(
        name=name,
        file=file,
        image=section.image,
        train=to_value(Train, section.train) if section.train else None,
        command=tuple(section.command or ()),
        working_dir=section.working_dir,
        reference_batch=section.reference_batch,
        batch_size=section.train.batch_size if section.train else section.batch_size,
        parameters=section.parameters,
        step_seconds=section.step_seconds,
        exchange=to_value(Exchange, section.exchange) if section.train else None,
        checkpoint=to_value(Checkpoint, section.checkpoint),
        faults=to_value(Faults, section.faults),
        parallel=to_value(Parallel, section.parallel),
        hosts=to_hosts(section.hosts),
        mounts=to_mounts(section.mounts),
        environment=tuple(section.environment.items()),
        secrets=to_secrets(section.secrets),
        nccl=tuple(section.nccl.items()),
        limits=Limits(
            limits.shared_memory, limits.memory, limits.cpus, limits.memlock, limits.stack
        ),
        port=section.rendezvous.port,
        metrics_port=section.metrics.port,
        stop_grace=section.stop_grace_period,
        user=section.user,
        data=to_data_sets(section.data),
        framework=Framework(section.framework),
        setup=tuple(section.setup),
        quiet=section.quiet,
        max_duration=section.max_duration,
        idle=section.idle,
        session=to_session(section.session),
        notify=to_receivers(section.notify, "NOTIFY"),
        queue=to_queued(section.queue, section.hosts, section.gpus),
    )
