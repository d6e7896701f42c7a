"""The queue with Compose: containers that wait for their turn, and notes on one host.

On each host that a job may use, `kit submit` creates the job's containers, without starting them.
The queue starts a job by a second container: a copy of the first one with the GPUs of this turn.
The first one stays, so that a controller may be killed at any point. A container is renamed before
it is asked to leave: its end then does not count as the end of the job.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kit.addresses import split_login, ssh_words
from kit.errors import InputError, KitError
from kit.hosts.connection import EngineError
from kit.hosts.docker import Docker, concurrently
from kit.model import Host
from kit.queue.carrier import RefusedError, Seen
from kit.queue.document import Rules, rules_of
from kit.queue.moves import Begin, Release
from kit.queue.record import Record, Spent, record_of
from kit.queue.service import UNIT, Service
from kit.targets.compose.containers import LEAVING, ON, Container
from kit.targets.compose.folder import HostFolder
from kit.targets.compose.jobs import bound, copy_secrets, remove, rename, stop
from kit.targets.compose.observe import containers
from kit.targets.compose.pool import AVOIDED, CLAIMED, RECLAIMED, SILENT, pool_of
from kit.workload.types import Role

POOL, SPENT, JOB, HOST, CLAIM = "pool", "spent", "job-", "host-", "claim-"
"""The names of the notes: of the pool, of the GPU-hours of people, of a job, of a host, and of the
claim of a deploy on a host."""
ASLEEP = 20.0
"""Seconds until a host that did not answer is asked again."""
NOTICED = 30.0
"""Seconds for the controller to ask jobs to leave GPUs that a deploy has claimed."""
POLL = 0.2
"""Seconds between two checks of containers that end."""
NO_RESTART = {"RestartPolicy": {"Name": "no", "MaximumRetryCount": 0}}


class ComposeQueue:
    """The queue of a cluster; `folder` is that of the named host, `dockers` are all engines.

    `controls`: the controller uses it, and records the hosts that it cannot reach. `alone` returns
    whether no other controller decides.
    """

    def __init__(
        self,
        folder: HostFolder,
        dockers: Mapping[str, Docker],
        hosts: Iterable[Host] = (),
        *,
        controls: bool = False,
        alone: Callable[[], bool] = lambda: True,
    ) -> None:
        self._folder = folder
        self._dockers = dockers
        self._hosts = tuple(hosts)
        self._controls, self._alone = controls, alone
        self._asleep: dict[str, tuple[float, str]] = {}
        self._seen: dict[str, tuple[Container, ...]] = {}
        self._asked = set[str]()
        self._known: Mapping[str, dict[str, Any]] = {}

    def service(self) -> Service:
        """Return the named host, and the call of the controller there.

        It reaches the others at their addresses, with the users of their logins.
        """
        here, others = self._folder.host, [h for h in self._hosts if h != self._folder.host]
        logins = {each.name: _between(each) for each in others}
        call = f"main({self._folder.cluster!r}, {here.name!r}, {json.dumps(logins)!r})"
        return Service(
            (here,),
            "kit.targets.compose.queue_program",
            call,
            tuple(map(ssh_words, logins.values())),
            # A host may be the named one of several clusters.
            f"{UNIT}-{self._folder.cluster}",
        )

    def leads(self) -> bool:
        """Return whether no other controller of the named host decides."""
        return self._alone()

    def look(
        self, rules: Rules, records: Sequence[Record], used: Mapping[str, float], now: float
    ) -> Seen:
        """Return the pool at the time `now`, and the changes of its jobs."""
        notes = self._folder.notes()
        self._seen = self._observed()
        silent = self._silent(notes.get(SILENT, {}))
        marks = {
            name: {
                **notes.get(f"{HOST}{name}", {}),
                SILENT: silent.get(name, ""),
                CLAIMED: notes.get(f"{CLAIM}{name}"),
            }
            for name in self._dockers
        }
        return pool_of(self._folder.cluster, self._seen, rules, records, marks, used, now)

    def _silent(self, noted: Mapping[str, str]) -> Mapping[str, str]:
        """Return the hosts that the controller cannot reach, with the reasons."""
        own = {name: why for name, (_, why) in self._asleep.items()}
        if not self._controls:
            return noted
        if own != noted:
            self._folder.put_note(SILENT, own)
        return own

    def _observed(self) -> dict[str, tuple[Container, ...]]:
        """Return the containers of each host that answers."""
        time_now = time.monotonic()
        asked = [
            name
            for name in self._dockers
            if name not in self._asleep or self._asleep[name][0] + ASLEEP <= time_now
        ]
        answers = dict(
            zip(
                asked,
                concurrently(lambda name: containers(self._dockers[name]), asked),
                strict=True,
            )
        )
        for name, answer in answers.items():
            if isinstance(answer, KitError):
                self._asleep[name] = time_now, answer.message
            else:
                self._asleep.pop(name, None)
        return {name: one for name, one in answers.items() if not isinstance(one, KitError)}

    # ---- Notes

    def rules(self) -> Rules | None:
        """Return the stored rules of the pool; None if there are none."""
        document = self._folder.notes().get(POOL)
        return rules_of(document) if document else None

    def set_rules(self, document: Mapping[str, Any]) -> bool:
        """Store the rules of the pool; return whether they changed."""
        if self._folder.notes().get(POOL) == document:
            return False
        self._folder.put_note(POOL, document)
        return True

    def spent(self) -> Spent:
        """Return the GPU-hours that people have used."""
        state = self._folder.notes().get(SPENT)
        return Spent(**state) if state else Spent(0.0)

    def set_spent(self, spent: Spent) -> None:
        """Store the GPU-hours that people have used."""
        self._folder.put_note(SPENT, asdict(spent))

    def records(self) -> dict[str, Record]:
        """Return the records of all jobs of the queue, by name."""
        found = {name: n for name, n in self._folder.notes().items() if name.startswith(JOB)}
        records = [_record(self._folder, name, note) for name, note in found.items()]
        self._known = found if self._controls else {}
        return {record.job: record for record in records}

    def add(self, record: Record) -> None:
        """Add a job; it replaces an earlier one with its name."""
        self._folder.put_note(f"{JOB}{record.job}", record.document())

    def update(self, record: Record) -> None:
        """Store the new record of a job, unless a person has changed it since it was read."""
        name = f"{JOB}{record.job}"
        self._folder.put_note(name, record.document(), self._known.get(name))

    # ---- Hosts

    def reclaim(self, host: str, who: str) -> None:
        """Record that `who` reclaims a host, or gives it back to the pool; see `Queue.reclaim`."""
        if host not in self._dockers:
            raise InputError(f"{host} is not a host of the cluster", "see `kit queue`")
        self._folder.put_note(f"{HOST}{host}", {RECLAIMED: who} if who else {})

    def avoid(self, host: str, now: float) -> None:
        """Record that somebody on a host has ended a job there; see `Queue.avoid`."""
        self._folder.put_note(f"{HOST}{host}", {AVOIDED: now})

    def claim(self, host: str, gpus: Sequence[str], now: float) -> None:
        """Record that a deploy claims GPUs of a host, and wait until jobs have left them.

        Raises:
            KitError: The controller does not ask them to leave.
        """
        self._folder.put_note(f"{CLAIM}{host}", {"since": now, "gpus": list(gpus)})
        deadline = time.monotonic() + NOTICED
        while holders := self._holders(host, gpus):
            stays = [one.job for one in holders if one.name.endswith(ON)]
            if stays and time.monotonic() > deadline:
                self.unclaim(host)
                what = f"job {stays[0]} of the queue keeps {', '.join(gpus)} of {host}"
                raise KitError(
                    f"{what}: the controller has not asked it to leave",
                    f"see `kit queue`, or take the host: `kit reclaim {host}`",
                )
            time.sleep(POLL)

    def unclaim(self, host: str) -> None:
        """Record that no deploy waits for GPUs of a host."""
        self._folder.put_note(f"{CLAIM}{host}", {"since": 0.0, "gpus": []})

    def _holders(self, host: str, gpus: Collection[str]) -> list[Container]:
        """Return the containers of the queue that hold some of these GPUs of a host."""
        own = containers(self._dockers[host], self._folder.cluster)
        made = (one for one in own if one.since is not None and one.runs)
        return [one for one in made if not set(gpus).isdisjoint(one.devices)]

    # ---- Containers

    def release(self, move: Release) -> None:
        """Make a job leave a host, at the end of its step. Docker kills it after its grace period.

        A killed controller may have renamed a container before it asked the container to end.
        """
        docker = self._dockers[move.host]
        for one in self._leaving(docker, move):
            if one.id not in self._asked:
                self._asked.add(one.id)
                threading.Thread(target=stop, args=(docker, one.id), daemon=True).start()

    def leave(self, move: Release, seconds: float) -> bool:
        """Make a job leave a host now; see `Queue.leave`."""
        docker, deadline = self._dockers[move.host], time.monotonic() + seconds
        for one in self._leaving(docker, move):
            docker.request("POST", f"/containers/{one.id}/kill", signal="SIGTERM")
        while left := [one for one in self._of(docker, move.job, LEAVING) if one.runs]:
            if time.monotonic() > deadline:
                break
            time.sleep(POLL)
        return not left

    def begin(self, move: Begin, now: float, waited: float) -> None:
        """Start a job on GPUs of a host; see `Queue.begin`."""
        docker = self._dockers[move.host]
        waiting = [one for one in self._of_job(docker, move.job) if one.waits]
        template = next((one for one in waiting if one.service == Role.TRAIN), None)
        if template is None:
            return  # `kit submit` is about to replace it.
        for suffix in (ON, LEAVING):
            for one in self._of(docker, move.job, suffix):
                remove(docker, one.id, force="1")
        name, spec = f"{template.name}{ON}", bound(template.spec, move.gpus, now, waited)
        try:
            made = docker.post("/containers/create", spec, name=name)
            copy_secrets(docker, template.id, made["Id"])
            docker.request("POST", f"/containers/{made['Id']}/start")
        except EngineError as error:
            raise RefusedError(error.message, error.hint) from None

    def coordinate(self, job: str, *, on: bool) -> None:
        """Turn the coordinator of a job on or off, by the containers that `look` has found."""
        for host, own in self._seen.items():
            for one in own:
                ours = one.cluster == self._folder.cluster and one.job == job
                if ours and one.service == Role.RENDEZVOUS and one.runs != on:
                    verb = "start" if on else "stop"
                    self._dockers[host].request("POST", f"/containers/{one.id}/{verb}")

    def _leaving(self, docker: Docker, move: Release) -> list[Container]:
        """Rename a job's containers on a host, to mark them as left; return the running ones."""
        made = [one for one in self._of_job(docker, move.job) if one.since is not None]
        for one in made:
            if one.name.endswith(LEAVING) and not one.runs:
                remove(docker, one.id)
        for one in made:
            if one.name.endswith(ON):
                # Docker must not restart it after the host was off.
                docker.post(f"/containers/{one.id}/update", NO_RESTART)
                rename(docker, one.id, f"{one.name.removesuffix(ON)}{LEAVING}")
        return [one for one in made if one.runs]

    def _of(self, docker: Docker, job: str, suffix: str) -> list[Container]:
        return [one for one in self._of_job(docker, job) if one.name.endswith(suffix)]

    def _of_job(self, docker: Docker, job: str) -> list[Container]:
        return [one for one in containers(docker, self._folder.cluster) if one.job == job]


def _between(host: Host) -> str:
    """Return the login by which another host reaches a host."""
    user, _, port = split_login(host.ssh)
    address = f"[{host.address}]" if ":" in host.address else host.address
    return f"{user}{address}{f':{port}' if port else ''}"


def _record(folder: HostFolder, name: str, note: Mapping[str, Any]) -> Record:
    try:
        return record_of(note)
    except TypeError:
        what = f"queue/{name}.json of {folder.path} on {folder.host.name} is not a record of a job"
        raise KitError(what, "remove that file, and hand the job in again") from None
