"""Start the containers, run all tests in them, and remove them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from kit.doctor.active import gpus, traffic
from kit.doctor.active.sessions import ask_each, ask_own, open_session, remove
from kit.doctor.checks import containers, links
from kit.doctor.facts import Report, Use, Wanted
from kit.doctor.findings import Finding
from kit.doctor.results import ContainerResults, Listing, Torch, TrialContainer, VisibleGpus
from kit.hosts.programs import Program, ProgramError
from kit.values import Say, count

FILES = 65536
"""The limit of open files of a job's containers, as templates write it."""
Sessions = Mapping[str, Program]
Answers = Mapping[str, "dict[str, Any] | ProgramError"]


def run_active(reports: Sequence[Report], wanted: Wanted, progress: Say) -> list[Finding]:
    """Return the findings of containers on the hosts that have answered."""
    usable = [report for report in reports if not report.facts.docker.fault]
    results = try_all(usable, wanted, progress)
    return [*containers.check(results, usable, wanted), *links.check(results, wanted)]


def try_all(reports: Sequence[Report], wanted: Wanted, progress: Say) -> ContainerResults:
    """Start a container on each host, and one for each of its GPU assignments."""
    token = secrets.token_hex(4)
    hosts = {report.host: wanted.of(report.host).host for report in reports}
    try:
        return _try_all(reports, wanted, token, progress)
    except BaseException:
        remove(list(hosts.values()), token)
        raise


def _try_all(
    reports: Sequence[Report], wanted: Wanted, token: str, progress: Say
) -> ContainerResults:
    images = {report.host: _image(report, wanted) for report in reports}
    ready = [report for report in reports if images[report.host]]
    progress(f"containers: starting on {count(len(ready), 'host')}")
    with ThreadPoolExecutor(max(len(ready), 1)) as pool, _opened() as opened:
        gpu_results = pool.map(lambda report: gpus.look(report, wanted, token), ready)
        for report in ready:
            host, name = wanted.of(report.host).host, f"kit-doctor-{token}-{report.host}"
            options = _options(report, wanted)
            opened[report.host] = open_session(host, images[report.host], name, options)
        overlay = traffic.overlay_sessions(ready, wanted, images, token)
        opened |= {f"{name} on the overlay": session for name, session in overlay.items()}
        sessions = {report.host: opened[report.host] for report in ready}
        greeted = ask_each(sessions, "hello")
        sessions = {name: each for name, each in sessions.items() if _good(greeted[name])}
        trials = _trial_containers(images, greeted)
        progress(f"traffic: {count(len(sessions), 'host')} among each other")
        listening, links_tried = traffic.links(sessions, wanted, int(token[:7], 16))
        trials = tuple(traffic.with_fault(each, listening.get(each.host)) for each in trials)
        exchanged = traffic.exchange(overlay) if overlay else None
        reached = traffic.reach(overlay, reports, wanted) if overlay else {}
        progress("images and data")
        torches = tuple(_torches(sessions, images))
        listings = tuple(_listings(sessions, reports, images, wanted))
        visible_gpus: tuple[VisibleGpus, ...] = tuple(one for each in gpu_results for one in each)
        progress("GPUs: one use of each")
        cuda = {torch.image for torch in torches if torch.cuda}
        used = pool.map(
            lambda report: gpus.compute(report, wanted, token, cuda, visible_gpus), ready
        )
        computed = tuple(one for each in used for one in each)
        return ContainerResults(
            trials, links_tried, exchanged, reached, visible_gpus, torches, listings, computed
        )


@contextmanager
def _opened() -> Iterator[dict[str, Program]]:
    """Yield a mapping whose sessions are closed at the end."""
    sessions: dict[str, Program] = {}
    try:
        yield sessions
    finally:
        with ThreadPoolExecutor(max(len(sessions), 1)) as pool:
            list(pool.map(Program.close, sessions.values()))


def _image(report: Report, wanted: Wanted) -> str:
    """Return an image of the plan that is on the host: one of its own, else any; or ""."""
    own = [use.image for use in wanted.of(report.host).uses]
    return next((each for each in (*own, *wanted.images) if each in report.vitals.images), "")


def _options(report: Report, wanted: Wanted) -> list[str]:
    """Return the options of a task of the host's largest workload, on the host's network."""
    uses = wanted.of(report.host).uses
    options = ["--network", "host", "--user", "0", "--cap-drop", "ALL", "--cap-add", "NET_RAW"]
    options += ["--cap-add", "DAC_READ_SEARCH"]  # The data may belong to any user.
    options += ["-e", "NVIDIA_VISIBLE_DEVICES=void", "--ulimit", f"nofile={FILES}:{FILES}"]
    if shared := max((use.shared_memory for use in uses), default=0):
        options += ["--mount", f"type=tmpfs,destination=/dev/shm,tmpfs-size={shared}"]
    if any(use.memlock == -1 for use in uses):
        options += ["--ulimit", "memlock=-1:-1"]
    for source, target in dict.fromkeys(_mounts(uses, report)):
        kind = "bind" if source.startswith("/") else "volume"
        options += ["--mount", f"type={kind},source={source},target={target},readonly"]
    return options


def _mounts(uses: Sequence[Use], report: Report) -> Iterator[tuple[str, str]]:
    """Yield the mounts that exist: Docker would create a missing volume."""
    targets: set[str] = set()
    for source, target in (each for use in uses for each in use.mounts):
        exists = source in report.vitals.volumes
        if source.startswith("/"):
            exists = source not in report.vitals.missing
        if exists and target not in targets:
            targets.add(target)
            yield source, target


def _good(answer: object) -> bool:
    return isinstance(answer, dict)


def _trial_containers(images: Mapping[str, str], greeted: Answers) -> tuple[TrialContainer, ...]:
    results = []
    for host, image in images.items():
        answer = greeted.get(host)
        if isinstance(answer, dict):
            sizes = (answer["shm"], answer["files"], answer["gpus"])
            results.append(TrialContainer(host, image, "", *sizes))
        else:
            results.append(TrialContainer(host, image, answer.what if answer else ""))
    return tuple(results)


def _torches(sessions: Sessions, images: Mapping[str, str]) -> Iterator[Torch]:
    """Yield the PyTorch of each image, from one host."""
    hosts = {images[host]: host for host in reversed(list(sessions))}
    asked = ask_each({host: sessions[host] for host in hosts.values()}, "torch")
    for image, host in hosts.items():
        answer = asked[host]
        if isinstance(answer, ProgramError):
            yield Torch(image, "", "", (), answer.what)
        else:
            yield Torch(image, answer["torch"], answer["cuda"], tuple(answer["archs"]))


def _listings(
    sessions: Sessions, reports: Sequence[Report], images: Mapping[str, str], wanted: Wanted
) -> Iterator[Listing]:
    uses: dict[str, list[Use]] = {}
    requests = {}
    for report in reports:
        own = [use for use in wanted.of(report.host).uses if use.image == images[report.host]]
        if report.host in sessions and own:
            uses[report.host] = own
            mounted = dict(_mounts(own, report))
            folders = [t for use in own if not use.document for s, t in use.mounts if s in mounted]
            documents = [use.document for use in own if use.document]
            requests[report.host] = {"do": "data", "folders": folders, "documents": documents}
    for host, answer in ask_own(requests, sessions).items():
        if isinstance(answer, ProgramError):
            continue
        trained = [use for use in uses[host] if use.document]
        for use, listing in zip(trained, answer["sets"], strict=True):
            if listing:
                yield _listing(host, use.workload, "data set", listing)
        for use in uses[host]:
            for folder, listing in answer["folders"].items():
                if not use.document and folder in {target for _, target in use.mounts}:
                    yield _listing(host, use.workload, folder, listing)


def _listing(host: str, workload: str, name: str, listing: Mapping[str, Any]) -> Listing:
    missing = listing.get("missing", "")
    sizes = (listing.get("files", 0), listing.get("bytes", 0), listing.get("digest", ""))
    return Listing(host, workload, name, missing, *sizes)
