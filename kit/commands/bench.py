"""`kit bench`: measure the hosts, the links between them, and a job's step."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import click

from kit.bench import file
from kit.bench.container import command as container_command
from kit.bench.findings import findings, show_bits
from kit.bench.measure import Results, measure, start
from kit.bench.steps import data_mounts, from_run, measure_steps
from kit.commands.options import chosen_hosts, with_paths
from kit.commands.tables import console, table
from kit.commands.targets import target_for
from kit.errors import InputError, KitError
from kit.hosts.programs import Program
from kit.measurements import HostRates, Measurements
from kit.model import Host, Network, interfaces_of
from kit.paths import Paths
from kit.plan.types import MountPoint
from kit.plan.work import JobPlan
from kit.project import load_lowered
from kit.rendered import program_text
from kit.runtime.status import ENDED
from kit.targets.lowered import Lowered
from kit.values import count, show_seconds


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON."),
        click.option("--anyway", is_flag=True, help="Measure although jobs run."),
        click.option("--dry-run", is_flag=True, help="Write no file."),
    ):
        function = option(function)
    return with_paths(function)


@click.group("bench", invoke_without_command=True, short_help="Measure hosts, links and steps.")
@_with_options
@click.option("--host", "names", multiple=True, help="Only this host, and others named so.")
@click.option("--image", help="Instead of the image of the first job.")
@click.pass_context
def command(
    context: click.Context,
    paths: Paths,
    names: tuple[str, ...],
    image: str | None,
    *,
    as_json: bool,
    anyway: bool,
    dry_run: bool,
) -> int:
    """Measure the hosts and the links between them, and say what is slow.

    In a container on each host it measures the bandwidth and the round trip of each pair of hosts,
    all-reduce among pairs and more hosts, reading the data folder, GPUs or CPU. The figures go into
    measurements.json beside the inventory, from which `kit plan` predicts.
    """
    if context.invoked_subcommand:
        return 0
    lowered = load_lowered(paths)
    hosts = _hosts(lowered, names)
    _require_idle(lowered, paths, anyway=anyway)
    results = _measured(lowered, hosts, image)
    if as_json:
        document = dataclasses.asdict(results.measurements) | {"failures": results.failures}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        _show(results, hosts)
    if not dry_run and results.measurements.hosts:
        written = file.store(paths.inventory, results.measurements)
        click.echo(f"{written}: written; `kit plan` predicts from it", err=as_json)
    return 1 if results.failures else 0


@command.command("step", short_help="Measure a job's step on each model of GPU.")
@click.argument("job")
@_with_options
@click.option("--of-run", is_flag=True, help="From the events of the job's last run instead.")
@click.option("--seconds", default=5.0, show_default=True, help="Time of each measurement.")
def step(
    paths: Paths,
    job: str,
    *,
    of_run: bool,
    seconds: float,
    as_json: bool,
    anyway: bool,
    dry_run: bool,
) -> int:
    """Measure the time of a step of JOB, without exchange, on one GPU of each model.

    The job's data must be on the hosts. `kit plan` predicts the speed on several hosts from it.
    """
    lowered = load_lowered(paths)
    plan = _job(lowered, job)
    if plan.division:
        what = f"the model of job {job} is divided: one GPU has no step of it"
        raise InputError(what, "read the time of a step in its log: kit logs " + job)
    if of_run:
        target = target_for(lowered.engine, lowered.cluster, paths.tree(lowered.cluster))
        times = [from_run(plan, target.logs([job], follow=False))]
    else:
        _require_idle(lowered, paths, anyway=anyway)
        work = lowered.workload(job)
        times = measure_steps(plan, work, seconds, _progress, on_hosts=lowered.on_hosts)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in times], indent=2))
    else:
        rows = table("GPU", "host", "step", "images/s", right=("step", "images/s"))
        for each in times:
            rate = f"{each.batch_size / each.seconds:,.0f}"
            rows.add_row(each.gpu, each.host, show_seconds(each.seconds), rate)
        console().print(rows)
    if not dry_run:
        written = file.store(paths.inventory, Measurements(steps=tuple(times)))
        click.echo(f"{written}: written; `kit plan` predicts from it", err=as_json)
    return 0


def _job(lowered: Lowered, name: str) -> JobPlan:
    for job in lowered.plan.jobs:
        if job.name == name:
            return job
    names = ", ".join(job.name for job in lowered.plan.jobs) or "none"
    raise InputError(f"there is no job {name}", f"jobs/ describes: {names}")


def _hosts(lowered: Lowered, names: Sequence[str]) -> list[Host]:
    if not lowered.on_hosts:
        raise InputError(
            f"{lowered.plan.file} says `engine: local`: there are no other hosts to measure",
            "`kit bench step JOB` measures a step on this machine",
        )
    return chosen_hosts(lowered.plan.hosts, names)


def _require_idle(lowered: Lowered, paths: Paths, *, anyway: bool) -> None:
    """Refuse to measure beside running jobs: both would be slowed."""
    if anyway:
        return
    tree = paths.tree(lowered.cluster)
    if not tree.exists():
        return  # Nothing was deployed from here.
    target = target_for(lowered.engine, lowered.cluster, tree)
    if not (target.on_hosts or target.tied_to_terminal):
        return  # Pods run on other machines than the measurement.
    try:
        running = [status.job for status in target.status() if status.state not in ENDED]
    except KitError as error:
        click.echo(f"note: it is unknown what runs: {error.message}", err=True)
        return
    if running:
        what = f"{', '.join(running)} runs, and measuring would slow it and be wrong"
        raise InputError(what, "run `kit stop --all` first, or add --anyway")


def _measured(lowered: Lowered, hosts: Sequence[Host], image: str | None) -> Results:
    image = image or next((job.image for job in lowered.plan.jobs), None)
    if image is None:
        raise InputError("there is no job, and so no image", "name one with PyTorch: --image IMAGE")
    source = program_text("probe.py")
    named = {host.name: interfaces_of(host, lowered.plan.network) for host in hosts}
    ports = {name: each if len(each) > 1 else () for name, each in named.items()}
    commands = {
        host.name: container_command(
            host,
            image,
            ("-u", "-c", source),
            gpus=host.gpus,
            mounts=_data(lowered, host),
            environment=nccl_variables(ports[host.name], lowered.plan.network),
            infiniband=lowered.plan.network.infiniband,
        )
        for host in hosts
    }
    _progress(f"starting a container on {count(len(hosts), 'host')}")
    with ExitStack() as stack:
        started = start(commands, stack)
        failures = [each.message for each in started.values() if isinstance(each, KitError)]
        agents = {name: each for name, each in started.items() if isinstance(each, Program)}
        reached = [host for host in hosts if host.name in agents]
        measured = measure(reached, agents, _progress, ports)
    return Results(measured.measurements, (*failures, *measured.failures))


def nccl_variables(ports: Sequence[str], network: Network) -> dict[str, str]:
    """Return NCCL's variables of a host, as its jobs get them."""
    own = {"NCCL_SOCKET_IFNAME": f"={','.join(ports)}"} if ports else {}
    return own | dict(network.nccl)


def _data(lowered: Lowered, host: Host) -> tuple[MountPoint, ...]:
    """Return the mount of the data folder of the first job on the host that has one."""
    for job in lowered.plan.jobs:
        if host in job.hosts:
            mounts = tuple(mount for mount in data_mounts(job) if mount.target == "/data")
            if mounts:
                return mounts
    return ()


def _progress(text: str) -> None:
    click.echo(text, err=True)


def _show(results: Results, hosts: Sequence[Host]) -> None:
    screen, measured = console(), results.measurements
    if measured.hosts:
        screen.print(_host_rows(measured))
    if measured.links:
        screen.print(_link_rows(measured))
    slow = findings(measured, hosts)
    for finding in slow:
        screen.print(f"slow: {finding.where}: {finding.what}")
    for failure in results.failures:
        screen.print(f"failed: {failure}")
    if not slow and not results.failures:
        screen.print("no host and no link is slow")


FEW_LINKS = 30


def _link_rows(measured: Measurements) -> Any:
    """Return the table of links; of many, only the slowest."""
    rows = table("link", "there", "back", "round trip", "all-reduce")
    pairs = {each.hosts: each.speed for each in measured.reductions}
    links = measured.links
    if len(links) > FEW_LINKS:
        links = tuple(sorted(links, key=lambda link: link.speed)[:FEW_LINKS])
    for link in links:
        reduced = pairs.get((link.one, link.other))
        rows.add_row(
            f"{link.one} – {link.other}",
            show_bits(link.forward),
            show_bits(link.backward),
            f"{link.round_trip * 1e3:.2f} ms",
            show_bits(reduced) if reduced else "-",
        )
    if len(links) < len(measured.links):
        rows.add_row(f"and {len(measured.links) - len(links)} faster ones", "", "", "", "")
    for each in measured.reductions:
        if len(each.hosts) > 2:
            what = f"{each.hosts[0]} … {each.hosts[-1]} ({len(each.hosts)})"
            rows.add_row(what, "", "", "", f"{show_bits(each.speed)} ({each.library})")
    return rows


def _host_rows(measured: Measurements) -> Any:
    rows = table("host", "disk", "GPU, fp16", "GPU memory", "CPU", right=("CPU",))
    for host in measured.hosts:
        rows.add_row(host.name, *_cells(host))
    return rows


def _cells(host: HostRates) -> tuple[str, str, str, str]:
    disk = f"{host.disk_read / 1e6:,.0f} MB/s" if host.disk_read else "-"
    disk += " (container)" if host.disk_of == "container" else ""
    products = ", ".join(f"{gpu.operations / 1e12:.3g} TFLOPS" for gpu in host.gpus) or "-"
    memory = ", ".join(f"{gpu.memory / 1e9:.3g} GB/s" for gpu in host.gpus) or "-"
    cpu = f"{host.cpu_steps:,.0f} steps/s" if host.cpu_steps else "-"
    return disk, products, memory, cpu
