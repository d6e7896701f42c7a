"""`kit plan`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from kit.bench.file import load
from kit.commands.code import size_of
from kit.commands.options import with_paths
from kit.commands.plan_tables import host_rows, placement_rows, serving_rows, work_of
from kit.commands.prediction import show_prediction
from kit.commands.tables import console
from kit.datasets.sizes import load as load_sizes
from kit.jobs import Package
from kit.measurements import Measurements
from kit.model import DataSet, Use
from kit.paths import Paths
from kit.plan.data import DataPlan, Sizes, fetches, stream_rates
from kit.plan.division import shown
from kit.plan.exchange import FINE, WANTED
from kit.plan.measured import valid, with_measured_links
from kit.plan.notes import package_notes
from kit.plan.predict import Prediction, predict
from kit.plan.queue import in_words
from kit.plan.types import ExchangePlan, ExchangeWay
from kit.plan.work import JobPlan, ServerPlan
from kit.project import load_project, lowered_of
from kit.render.documents import header, plan_json
from kit.targets.lowered import Lowered
from kit.values import count, show_bytes, show_seconds, show_size, show_speed
from kit.workload.types import Workload
from trainer.contract.described import augmentations, how_it_steps

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


@click.command("plan", short_help="Show which host does what.")
@with_paths
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--all", "every", is_flag=True, help="Show each host in its own row.")
def command(paths: Paths, as_json: bool, every: bool) -> None:
    """Show which host does what: GPUs, ranks, batch sizes, and the cost of the network."""
    project = load_project(paths)
    measured = valid(load(paths.inventory), project.inventory)
    lowered = lowered_of(project, with_measured_links(project.inventory, measured))
    predictions = _predictions(lowered, measured)
    sizes = load_sizes(paths.inventory) if lowered.plan.data else {}
    if as_json:
        generated = header(lowered, *lowered.plan.sources)
        text = plan_json(lowered, generated, predictions=predictions, sizes=sizes)
        click.echo(text, nl=False)
        return
    show(lowered, predictions, sizes, every=every)
    if measured.links:
        click.echo(f"links as measured by `kit bench`, {measured.measured}")


def _predictions(lowered: Lowered, measured: Measurements) -> dict[str, Prediction]:
    """Return the predictions by job, as far as steps were measured."""
    jobs, overlay = lowered.plan.jobs, bool(lowered.overlay)
    predictions = {job.name: predict(job, measured, overlay=overlay) for job in jobs}
    return {name: each for name, each in predictions.items() if each is not None}


def show(
    lowered: Lowered, predictions: Mapping[str, Prediction], sizes: Sizes, *, every: bool
) -> None:
    """Print the plan as tables; equal hosts share a row unless `every` is set."""
    from rich.text import Text

    screen, plan = console(), lowered.plan
    training = sum(gpu.use is Use.TRAINING for host in plan.hosts for gpu in host.gpus)
    total = sum(len(host.gpus) for host in plan.hosts)
    screen.print(
        _bold(plan.cluster),
        f" engine {lowered.engine}, {count(len(plan.hosts), 'host')}, "
        f"{count(total, 'GPU')}, {training:,} for training",
    )
    screen.print(host_rows(plan, every=every))
    if plan.monitoring and (logs := plan.monitoring.logs):
        days, most = count(logs.days, "day"), show_size(logs.size)
        screen.print(f"each host keeps the lines of containers for {days}, at most {most}")
    for job in plan.jobs:
        screen.print(_bold(f"job {job.name}"), f" {work_of(job)}")
        screen.print(placement_rows(job, every=every))
        work = lowered.workload(job.name)
        prediction = predictions.get(job.name)
        for line in _lines(lowered, job, work, sizes, predicted=prediction is not None):
            screen.print(f"  {line}")
        if len(job.placements) > 1:
            screen.print(f"  ranks       consecutive on each host; {_order(job)}")
        if prediction:
            show_prediction(screen, prediction)
        screen.print()
    for server in plan.servers:
        _show_server(screen, server, lowered.workload(server.name), every=every)
    if not plan.jobs:
        screen.print("no jobs: describe one in jobs/<name>.yaml")
    packages = ((each.name, each.job.package) for each in lowered.plan.jobs)
    of_code = [note for name, one in packages if one for note in package_notes(name, one)]
    for note in (*lowered.notes, *of_code):
        screen.print(Text("note", style="yellow"), f" {note}")


def _lines(
    lowered: Lowered, job: JobPlan, work: Workload, sizes: Sizes, *, predicted: bool
) -> Iterator[str]:
    """Yield the lines on a job below the table of its hosts."""
    if session := job.job.session:
        yield from _data(lowered, job, sizes)
        yield f"home        {session.home}, in a volume of {job.hosts[0].name}, which stays"
        return
    if queued := job.job.queue:
        yield f"queue       {in_words(queued)}; `kit submit {job.name}` hands it in"
    yield from (_batch(job), *_recipe(job), *_precision(work), *_data(lowered, job, sizes))
    yield from _division(job) if job.division else [_traffic(job)]
    yield from () if predicted else _exchange(job)
    yield _rendezvous(job, work)


def _bold(text: str) -> Text:
    from rich.text import Text

    return Text(text, style="bold")


def _show_server(screen: Console, server: ServerPlan, work: Workload, *, every: bool) -> None:
    screen.print(_bold(f"server {server.name}"), f" {_answers(server)}")
    if server.placements:
        screen.print(serving_rows(server, every=every))
        screen.print(f"  answers at  {_addresses(work)}")
        if server.checkpoints:
            screen.print(f"  from        {_few(work.sources) or 'the same host'}")
    screen.print()


def _answers(server: ServerPlan) -> str:
    if server.server.own:
        return shlex.join(server.server.own.command) + ("" if server.placements else "; idle")
    which = server.server.checkpoint
    which = which if which.startswith("step-") else f"the {which} checkpoint"
    idle = "" if server.placements else "; idle"
    return f"{which} of job {server.server.job}{idle}"


def _addresses(work: Workload) -> str:
    """Return the addresses of a server; that of its proxy first."""
    if not work.proxied:
        return _few(work.urls)
    return f"{work.urls[-1]}, the proxy of {_few(work.urls[:-1])}"


def _few(urls: Sequence[str]) -> str:
    more = len(urls) - 3
    return ", ".join(urls[:3]) + (f" and {more} more" if more > 0 else "")


def _batch(job: JobPlan) -> str:
    batch = job.batch
    if batch.total is None:
        return "batch       unknown; `batch_size: N` in the job gives the global batch"
    gpus = sum(len(placement.gpus) for placement in job.counted)
    processes = "1 process" if gpus == 1 else f"{gpus:,} processes"
    if job.division:
        parts = job.division.sizes["data"] * job.division.sizes["shard"]
        processes = f"{count(parts, 'part')} of the data"
        gpus = job.world_size
    if gpus != job.world_size:
        processes = f"{gpus:,} GPUs"
    fixed = bool(job.job.train and job.job.train.global_batch)
    return (
        f"batch       {'at most ' if fixed else ''}{batch.per_gpu} per GPU × {processes} × "
        f"{count(batch.accumulation, 'accumulation step')} = {batch.total:,} global"
        f"{', with any number of hosts' if fixed else ''}"
    )


def _recipe(job: JobPlan) -> Iterator[str]:
    """How the built-in training steps, and what it does with images."""
    if job.job.train and job.batch.total:
        yield f"steps       {how_it_steps(job.job.train, job.batch.total)}"
        if changes := augmentations(job.job.train):
            yield f"images      {changes}"


def _traffic(job: JobPlan) -> str:
    traffic = job.traffic
    if traffic.gradient_bytes is None:
        return "gradients   unknown; `parameters: N` in the job gives their time on the network"
    size = f"gradients   {traffic.parameters:,} parameters"
    size += f", {traffic.gradient_bytes / 1e6:.1f} MB a step"
    if traffic.seconds is None or traffic.speed is None:
        return f"{size}, none of it between hosts"
    slowest = ""
    if any(placement.host.speed != traffic.speed for placement in job.placements):
        slowest = f" ({traffic.slowest_host} the slowest)"
    link = show_speed(traffic.speed)
    return f"{size}: {show_seconds(traffic.seconds)} by ring all-reduce over {link}{slowest}"


def _division(job: JobPlan) -> list[str]:
    """Return the lines on a divided model: its grid, and the memory of a GPU."""
    division = job.division
    if division is None:
        return []
    used = [(name, size) for name, size in division.sizes.items() if size > 1]
    grid = " x ".join(f"{name} {size}" for name, size in used) or "one rank"
    where = (
        f"{name} {'on one host' if name in division.within_hosts else 'across hosts'}"
        for name, _ in reversed(used)
    )
    lines = [f"parallel    {grid}" + (f": {', '.join(where)}" if used and _hosts(job) > 1 else "")]
    if (needs := division.memory) is None:
        unknown = "unknown; `parameters: N` in the job gives an estimate"
        return [*lines, f"memory      {unknown}"]
    of = f" of {show_bytes(division.room)}" if division.room else ""
    more = "" if needs.activations is not None else ", and activations, which kit does not know"
    return [*lines, f"memory      about {show_bytes(needs.total)}{of} a GPU: {shown(needs)}{more}"]


def _hosts(job: JobPlan) -> int:
    return len(job.placements)


def _precision(work: Workload) -> list[str]:
    if work.precision is None:
        return []
    oldest = f"{work.precision.gpu} on {work.precision.host}"
    return [f"precision   {work.precision.type} by the oldest GPU, {oldest}"]


def _data(lowered: Lowered, job: JobPlan, sizes: Sizes) -> list[str]:
    """Return a line for each data set: its size, and the time of the first fetch."""
    data = lowered.plan.data
    if data is None or not job.job.data:
        return []
    lines, package = list[str](), job.job.package
    if package is not None:
        sizes = {**sizes, (package.data_set.name, 1): package.bytes}
    for stream in stream_rates(data, job.job.streamed, job.hosts, sizes):
        what = _stored(data, stream.data, stream.bytes)
        if stream.rate is not None and lowered.on_hosts:
            hosts, each = count(len(stream.hosts), "host"), " each" if stream.hosts[1:] else ""
            what += f": the links allow {hosts} {show_bytes(int(stream.rate))}/s{each}"
        lines.append(f"streams     {what}")
    for fetch in fetches(data, job.job.fetched, job.hosts, sizes):
        code = package is not None and fetch.data == package.data_set
        what = _code(package) if code and package else _stored(data, fetch.data, fetch.bytes)
        if fetch.slowest is not None and fetch.seconds is not None and lowered.on_hosts:
            hosts = count(len(fetch.hosts), "host")
            link = show_speed(fetch.slowest.speed)
            time = show_seconds(fetch.seconds)
            what += f": the first fetch by {hosts} takes {time} over {link}"
        lines.append(f"{'code' if code else 'data':<12}{what}")
    return lines


def _code(package: Package) -> str:
    return f"{package.version} of {package.folder}, {size_of(package)}"


def _stored(data: DataPlan, one: DataSet, size: int | None) -> str:
    what = f"{one.title} on {data.storage.name}"
    if size is None:
        return f"{what}, of unknown size; `kit data add` stores it, `kit data ls` asks for its size"
    return f"{what}, {show_bytes(size)}"


def _exchange(job: JobPlan) -> list[str]:
    """Return the lines on the exchange: its cost, its break-even, and the advice."""
    exchange = job.exchange
    if exchange is None:
        return []
    own, advice = exchange.chosen, exchange.advice
    if own is None:
        unknown = "powersgd: its size depends on the shapes of the weights"
        return [f"exchange    {unknown}", f"ways        {_ways(exchange)}"]
    compute = f"{show_seconds(exchange.compute_seconds)} of compute"
    compute += " (assumed; write step_seconds)" if exchange.assumed else ""
    fine = advice is None and own.compute_share >= FINE
    plain = own.mode == "every_step" and own.compression == "none"
    verdict = (": plain DDP is fine" if plain else ": fine") if fine else ""
    time, even = show_seconds(own.step_seconds), show_seconds(own.break_even)
    lines = [
        f"exchange    {_way(own)}, {time} a step: with {compute} {_share(own)} of the time is "
        f"compute{verdict}",
        f"break-even  below {even} of compute a step, more than half of the time is exchange",
    ]
    if fine:
        return lines
    if job.job.exchange is None:
        hook = f"DDP's fp16_compress_hook leaves {_share(exchange.ways[-1])} compute"
        return [*lines, f"advice      change the script: {hook}, no_sync skips exchanges"]
    lines.append(f"ways        {_ways(exchange)}")
    if advice is None:
        return [*lines, "advice      no other mode is better: use fewer hosts, or a faster link"]
    most = "" if advice.compute_share >= WANTED else ", the most of all modes"
    return [*lines, f"advice      {_line(advice)}  {_share(advice)} compute{most}"]


def _way(way: ExchangeWay) -> str:
    steps = "every step" if way.mode == "every_step" else f"{way.mode} every {way.every_steps}"
    steps += "" if way.compression == "none" else f" in {way.compression}"
    return f"{steps} overlapped" if way.overlap else steps


def _ways(exchange: ExchangePlan) -> str:
    ways = [f"{_way(way)} {show_seconds(way.step_seconds)}" for way in exchange.ways]
    return ", ".join(ways) + " a step; powersgd by the weights' shapes"


def _share(way: ExchangeWay) -> str:
    """Return a share in percent, rounded down."""
    percent = way.compute_share * 100
    return f"{math.floor(percent)} %" if percent >= 1 else f"{percent:.1g} %"


def _line(way: ExchangeWay) -> str:
    items = {"mode": way.mode}
    if way.mode != "every_step":
        items["every_steps"] = str(way.every_steps)
    if way.compression != "none":
        items["compression"] = way.compression
    if way.overlap:
        items["overlap"] = "true"
    return f"exchange: {{{', '.join(f'{key}: {value}' for key, value in items.items())}}}"


def _order(job: JobPlan) -> str:
    """Describe which host has the first ranks."""
    if job.job.command:
        return "hosts are in the order of their addresses"
    return "hosts are in the order of their names"


def _rendezvous(job: JobPlan, work: Workload) -> str:
    fewest, most = job.nodes
    hosts = f"{count(most, 'host')}, all needed" if fewest == most else f"{fewest} to {most} hosts"
    assert work.rendezvous is not None
    return f"coordinator {work.rendezvous.endpoint} on {work.rendezvous.host.name}; {hosts}"
