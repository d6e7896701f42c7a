"""The health of custom servers, requested at the addresses that their clients use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from kit.errors import KitError
from kit.runtime.status import ENDED, HostStatus, JobStatus, State
from kit.values import Say

PATIENCE = 5.0
"""Seconds that a server may take to answer."""
POLL = 1.0
"""Seconds between two queries of a server that is not healthy."""
PROXY_STARTS = 60.0
"""Seconds that a proxy may take to start, with the pull of its image."""
MOST_STARTS = 3
"""A server that has ended this number of times does not become healthy by itself."""
MOST_CONCURRENT = 32


@dataclass(frozen=True, slots=True)
class Check:
    """A health check of a server: a path on its hosts, in the order of its URLs, and a proxy's URL.

    The hosts are not checked if `path` is "", the proxy is not if `proxy` is "".
    """

    path: str
    hosts: tuple[str, ...]
    proxy: str = ""


def fault(url: str) -> str:
    """Return why a server is not healthy; "" if it answers with a status below 400."""
    status, reason = answer(url)
    path = urlsplit(url).path
    if status == 404:
        return f"it answers 404 at {path}: correct `health:`"
    return f"it answers {status} at {path}" if status >= 400 else reason


def answer(url: str) -> tuple[int, str]:
    """Return the HTTP status of a server's answer, or 0 and the reason why there is none."""
    parts = urlsplit(url)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        status = connection.getresponse().status
    except ConnectionRefusedError:
        return 0, f"nothing listens on port {parts.port or 80}"
    except TimeoutError:
        return 0, f"port {parts.port or 80} has not answered for {PATIENCE:.0f} s"
    except (HTTPException, OSError) as error:
        reason = error or type(error).__name__
        return 0, f"port {parts.port or 80} does not answer as a web server: {reason}"
    finally:
        connection.close()
    return status, ""


def with_health(
    statuses: Sequence[JobStatus], checks: Mapping[str, Check]
) -> tuple[JobStatus, ...]:
    """Return statuses with the health of the running servers; all are checked concurrently."""
    wanted = {
        (status.job, host): f"{url}{check.path}"
        for status in statuses
        if (check := checks.get(status.job)) and check.path
        for host, url in zip(check.hosts, status.urls, strict=False)
    }
    running = {
        (status.job, host.host)
        for status in statuses
        for host in status.hosts
        if host.state is State.RUNNING
    }
    urls = {key: url for key, url in wanted.items() if key in running}
    serving = {job for job, _ in running}
    proxies = {job: each.proxy for job, each in checks.items() if each.proxy and job in serving}
    with ThreadPoolExecutor(MOST_CONCURRENT) as pool:
        faults = dict(zip(urls, pool.map(fault, urls.values()), strict=True))
        others = dict(zip(proxies, pool.map(fault, proxies.values()), strict=True))
    return tuple(
        replace(
            status,
            hosts=tuple(_with_health(status.job, host, faults) for host in status.hosts),
            message=_with_proxy(status.message, others.get(status.job, "")),
        )
        for status in statuses
    )


def _with_proxy(message: str, proxy_fault: str) -> str:
    return "; ".join(filter(None, [message, f"its proxy: {proxy_fault}" if proxy_fault else ""]))


def _with_health(job: str, host: HostStatus, faults: Mapping[tuple[str, str], str]) -> HostStatus:
    if (job, host.host) not in faults:
        return host
    health_fault = faults[job, host.host]
    messages = [host.message, f"not healthy: {health_fault}" if health_fault else ""]
    return replace(host, healthy=not health_fault, message="; ".join(filter(None, messages)))


def await_healthy(
    name: str, look: Callable[[], JobStatus | None], timeout: float, say: Say
) -> JobStatus:
    """Wait until a server is healthy on all hosts, and return its status.

    Raises:
        KitError: It ends again and again, or is not healthy in time.
    """
    began, shown = time.monotonic(), ""
    while True:
        status = look()
        if status is None or status.state in ENDED:
            ending = status.message if status else "its containers are gone"
            raise KitError(f"{name} has ended: {ending}", f"see `kit logs {name}`")
        ill = [host for host in status.hosts if not host.healthy]
        if not ill:
            say(f"{name}: healthy, {', '.join(status.urls)}")
            return status
        reason = "; ".join(f"{host.host}: {host.message or host.state}" for host in ill)
        if any(host.starts > MOST_STARTS for host in ill):
            raise KitError(f"{name} ends again and again: {reason}", _advice(name))
        if time.monotonic() - began > timeout:
            what = f"{name} was not healthy within {timeout:.0f} s: {reason}"
            raise KitError(what, f"{_advice(name)}, or write a longer `start_timeout:`")
        if reason != shown:
            say(f"{name}: {reason}")
            shown = reason
        time.sleep(POLL)


def await_proxy(name: str, url: str) -> None:
    """Wait until a server's proxy answers, whether or not a host is ready.

    Raises:
        KitError: It does not.
    """
    began = time.monotonic()
    while True:
        status, reason = answer(url)
        if status:
            return
        if time.monotonic() - began > PROXY_STARTS:
            raise KitError(f"the proxy of {name} does not run: {reason}", f"see `kit logs {name}`")
        time.sleep(POLL)


def _advice(name: str) -> str:
    return f"see `kit logs {name}`; `kit stop {name}` removes it"
