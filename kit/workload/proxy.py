"""One address for the hosts of a server: HAProxy before them, as a part of the server. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kit.model import Host, Limits, Proxy
from kit.plan.images import pinned
from kit.plan.work import Plan, ServerPlan, manager_of
from kit.values import endpoint
from kit.workload.privileges import NOBODY
from kit.workload.types import Config, Document, Part, Port, Role, Variable, Word

FILE = "/kit/haproxy.cfg"
GRACE = 60
"""Seconds that the proxy has for open requests; HAProxy ends as soon as there is none."""
_PLAIN = re.compile(r"[\w/.~%?&=+:@,;!*()\[\]-]+")
MOST_IDLE = 64
"""With more hosts, those that do not serve are not asked all the time."""
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


def backends(plan: Plan, server: ServerPlan) -> Sequence[Host]:
    """Return the hosts that the proxy asks: all that may serve, so that a split does not change it.

    Where another server has the same port, or there are many, only those that serve now.
    """
    settings = server.server
    names = settings.hosts.names
    able = [host for host in plan.hosts if host.gpus and (not names or host.name in names)]
    shared = sum(each.server.port == settings.port for each in plan.servers) > 1
    if shared or len(able) > MOST_IDLE:
        return [each.host for each in server.placements]
    return able


def proxy_document(
    plan: Plan, server: ServerPlan, proxy: Proxy, ready: str, patience: int, generated: str
) -> Document:
    """Return HAProxy's configuration. A host is used while it answers the path `ready`."""
    settings = server.server
    lines = (
        f"  server {host.name} {endpoint(host.address, settings.port)}"
        for host in backends(plan, server)
    )
    text = CONFIGURATION.format(
        generated=generated,
        grace=GRACE,
        patience=patience,
        port=proxy.port,
        path=_word(ready),
        once=ONCE if settings.own else "",
        servers="\n".join(lines),
    )
    return Document(f"serve/{settings.short_name}.haproxy.cfg", text)


def _word(text: str) -> str:
    """Return a text as one word of HAProxy's configuration (its manual, section 2.2)."""
    return text if _PLAIN.fullmatch(text) else "'" + text.replace("'", "'\\''") + "'"


def proxy_parts(plan: Plan, proxy: Proxy | None, document: Document | None) -> Sequence[Part]:
    """Make the part of the proxy, if the server has one."""
    if proxy is None or document is None:
        return ()
    return (
        Part(
            role=Role.PROXY,
            name=Role.PROXY,
            hosts=(proxy_host(plan, proxy),),
            placements=(),
            replicas=1,
            image=pinned(proxy.image, plan.lock),
            launch=("haproxy", "-W", "-db", "-f", FILE),
            environment=(Variable("NVIDIA_VISIBLE_DEVICES", Word("void")),),
            ports=(Port(proxy.port, ("proxy", "port"), public=True),),
            configs=(Config("proxy", document.path, FILE),),
            grace=GRACE,
            limits=LIMITS,
            user=NOBODY,
            unprivileged=True,
            read_only=True,
        ),
    )
