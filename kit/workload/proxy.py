"""One address for the hosts of a server: HAProxy in front of them, as a part of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from kit.addresses import endpoint
from kit.model import Host, Limits
from kit.plan.images import pinned
from kit.plan.work import Plan, ServerPlan, manager_of
from kit.servers import Proxy
from kit.workload.documents import generated
from kit.workload.ports import LEAST_OF_USERS
from kit.workload.privileges import NOBODY
from kit.workload.settings import Config, Port, Variable, Word
from kit.workload.types import Document, Part, Role, Workload

FILE = "/kit/haproxy.cfg"
GRACE = 60
"""Seconds that the proxy has for open requests; HAProxy ends as soon as there is none."""
_PLAIN = re.compile(r"[\w/.~%?&=+:@,;!*()\[\]-]+")
LONGEST_PAUSE = 600
"""Seconds that an answer may take behind the proxy: a long text, say."""
MOST_IDLE = 64
"""With more hosts, the proxy does not check those that do not serve now."""
LIMITS = Limits(0, 512 * 2**20, None, None, None)
CONFIGURATION = """\
# {generated}

global
  maxconn 4000
  # A request up to this size is sent again to another host, if its host ends before it answers.
  tune.bufsize 65536
  hard-stop-after {grace}s

defaults
  mode http
  log stdout format raw local0
  option httplog
  timeout connect 2s
  timeout client 60s
  # The longest pause of an answer, also before its beginning.
  timeout server {patience}s
  timeout http-request 30s
  # A host that has lost its power closes no connection: it is lost after 11 s in silence.
  option srvtcpka
  srvtcpka-idle 5s
  srvtcpka-intvl 2s
  srvtcpka-cnt 3
  # No connection to a server is used twice: one may close it at any time when it ends.
  option http-server-close
  option redispatch 1
  retries 5
  retry-on conn-failure empty-response
  option forwardfor

frontend clients
  bind :{port}
  # The same id is in the log of the server.
  http-request set-header X-Request-Id %[uuid()] unless {{ req.hdr(X-Request-Id) -m found }}
  http-request capture req.hdr(X-Request-Id) len 64
{once}  default_backend servers

backend servers
  balance leastconn
  option httpchk
  http-check send meth GET uri {path}
  http-check expect status 200-399
  default-server check inter 1s fall 2 rise 1 observe layer4 error-limit 1 on-error mark-down
{servers}
"""


ONCE = """\
  # A POST that a host has taken is not sent again: the server may have acted on it.
  http-request disable-l7-retry if METH_POST
"""


def proxy_host(plan: Plan, proxy: Proxy) -> Host:
    """Return the host of a proxy: the named one, or the first manager."""
    return next((host for host in plan.hosts if host.name == proxy.host), manager_of(plan.hosts))


def proxy_url(plan: Plan, proxy: Proxy) -> str:
    """Return the one address of a server."""
    address = endpoint(proxy_host(plan, proxy).address, proxy.port)
    return f"http://{address.removesuffix(':80')}"


def backends(plan: Plan, server: ServerPlan, taken: Collection[str]) -> Sequence[Host]:
    """Return the hosts that the proxy checks: all that may serve, so that a split keeps its file.

    Another service answers at this port of the hosts `taken`. If another server has the same port,
    or with many hosts, the proxy checks only those that serve now.
    """
    serving = [each.host for each in server.placements]
    shared = sum(each.server.port == server.server.port for each in plan.servers) > 1
    if shared or len(server.able) > MOST_IDLE:
        return serving
    return [host for host in server.able if host in serving or host.name not in taken]


def proxy_document(
    server: ServerPlan, proxy: Proxy, ready: str, hosts: Iterable[Host], header: str
) -> Document:
    """Return HAProxy's configuration. One of the `hosts` is used while it answers at `ready`."""
    settings = server.server
    lines = (f"  server {host.name} {endpoint(host.address, settings.port)}" for host in hosts)
    text = CONFIGURATION.format(
        generated=header,
        grace=GRACE,
        patience=max(LONGEST_PAUSE, settings.timeout),
        port=proxy.port,
        path=_word(ready),
        once=ONCE if settings.own else "",
        servers="\n".join(lines),
    )
    return Document(f"serve/{settings.short_name}.haproxy.cfg", text)


def _word(text: str) -> str:
    """Return a text as one word of HAProxy's configuration (its manual, section 2.2)."""
    return text if _PLAIN.fullmatch(text) else "'" + text.replace("'", "'\\''") + "'"


def with_proxy(
    plan: Plan, server: ServerPlan, workload: Workload, taken: Collection[str]
) -> Workload:
    """Add the proxy to a server that has one and runs; for `taken` see `backends`."""
    proxy = server.server.proxy
    if proxy is None or not workload.parts:
        return workload
    header = generated(plan.file, server.server.file)
    hosts = backends(plan, server, taken)
    document = proxy_document(server, proxy, workload.ready, hosts, header)
    part = _part(plan, proxy, workload.ready, document, host_network=workload.host_network)
    return replace(
        workload,
        parts=(*workload.parts, part),
        urls=(*workload.urls, proxy_url(plan, proxy)),
        files=(document,),
    )


def _part(plan: Plan, proxy: Proxy, ready: str, document: Document, *, host_network: bool) -> Part:
    # Docker lets every user listen on any port, but not on the network of the host.
    low, host = host_network and proxy.port < LEAST_OF_USERS, proxy_host(plan, proxy)
    return Part(
        role=Role.PROXY,
        name=Role.PROXY,
        hosts=(host,),
        placements=(),
        replicas=1,
        image=pinned(proxy.image, plan.lock),
        launch=("haproxy", "-W", "-db", "-f", FILE),
        environment=(Variable("NVIDIA_VISIBLE_DEVICES", Word("void")),),
        ports=(Port(proxy.port, ("proxy", "port"), public=True),),
        configs=(Config("proxy", document.path, FILE),),
        grace=GRACE,
        limits=LIMITS,
        user="0:0" if low else NOBODY,
        unprivileged=True,
        capabilities=("NET_BIND_SERVICE",) if low else (),
        read_only=True,
        open_files=True,
        stop_signal="SIGUSR1",
        about=(
            f"One address for all hosts, on {host.name}: it sends requests to the hosts that "
            f"answer {ready}.",
        ),
        why={
            **({"user": "Only root may listen on this port of the host's network."} if low else {}),
            "ulimits": "Two for each request.",
            "stop_signal": "HAProxy answers the open requests after this signal.",
        },
    )
