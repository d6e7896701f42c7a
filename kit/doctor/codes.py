"""The codes of findings on hosts together: the Swarm, the network, data. And all codes. Pure."""

from __future__ import annotations

from kit.doctor import host_codes
from kit.doctor.findings import Code

MEMBER = Code(
    "KIT-SWARM-001",
    "hosts are ready nodes of one Swarm",
    "The host is in no Swarm, in another one, down, drained or locked.",
    "`kit swarm up`; for a drained node `docker node update --availability active NODE`. Restart "
    "the Docker of a node that is down with sound links: the managers have missed its return.",
)
LABELS = Code(
    "KIT-SWARM-002",
    "nodes have their labels",
    "Placement needs labels that are missing or old.",
    "`kit swarm up`.",
)
QUORUM = Code(
    "KIT-SWARM-003",
    "managers have a quorum",
    "Too few managers are reachable: nothing can be started or changed.",
    "Start the managers that are down. Use an odd number, three or five.",
)
CERTIFICATE = Code(
    "KIT-SWARM-004",
    "certificates are valid",
    "The certificate of a node has expired or is about to: the node was off for months, or its "
    "clock is wrong.",
    "`docker swarm ca --rotate` on a manager; an expired node leaves and joins again.",
)
ADVERTISED = Code(
    "KIT-SWARM-005",
    "nodes use the address of the inventory",
    "The node joined the Swarm with another address: the training uses another network.",
    "On the host `docker swarm leave`, then `kit swarm up`.",
)

MANAGER_PORT = Code(
    "KIT-NET-001",
    "2377/tcp of the managers is open",
    "A firewall closes the port by which nodes reach managers.",
    "Open 2377/tcp on the managers: `ufw allow from SUBNET to any port 2377 proto tcp`.",
    active=True,
)
GOSSIP_TCP = Code(
    "KIT-NET-002",
    "7946/tcp is open",
    "A firewall closes the port by which nodes find each other.",
    "`ufw allow from SUBNET to any port 7946`, on the host that the arrow points to.",
    active=True,
)
GOSSIP_UDP = Code(
    "KIT-NET-003",
    "7946/udp is open",
    "A firewall closes the port by which nodes find each other: names of containers do not resolve "
    "on other hosts.",
    "`ufw allow from SUBNET to any port 7946`, on the host that the arrow points to.",
    active=True,
)
VXLAN = Code(
    "KIT-NET-004",
    "4789/udp is open",
    "A firewall closes the port of the overlay network: containers of different hosts cannot reach "
    "each other. Some virtual machines' hosts use this port themselves.",
    "`ufw allow from SUBNET to any port 4789 proto udp`, on the host that the arrow points to.",
    active=True,
)
MTU = Code(
    "KIT-NET-005",
    "packets of the planned MTU pass",
    "The path between two hosts carries smaller packets than `network: {mtu: …}` says. Small "
    "messages pass, large ones hang.",
    "Write the MTU of the finding into the inventory, or correct it on the host or the switch.",
    active=True,
)
OVERLAY = Code(
    "KIT-NET-006",
    "the overlay carries data between all hosts",
    "Containers on the overlay network cannot exchange data.",
    "See the findings on 4789/udp, 7946 and the MTU first; then restart Docker on that host.",
    active=True,
)
RENDEZVOUS = Code(
    "KIT-NET-007",
    "the coordinator can be reached",
    "A host cannot connect to the coordinator of a job, at which its hosts meet.",
    "Open the port of the finding on the host that it names.",
    active=True,
)
HIGH_PORTS = Code(
    "KIT-NET-009",
    "ports of the training are open",
    "On the hosts' own network ranks connect to any port of each other, and a firewall closes "
    "them.",
    "`ufw allow from SUBNET`, on the host that the arrow points to.",
    active=True,
)
INTERFACE = Code(
    "KIT-NET-008",
    "the training uses the planned interface",
    "The address of the inventory is on no interface of the host, the interface is missing, down "
    "or slower than the inventory says, or packets to other hosts leave by another one.",
    "Correct `address`, `interface` or `speed` in the inventory, or the host's routes.",
)

USED_PORT = Code(
    "KIT-NET-010",
    "ports of the services are free or their own",
    "Another program or container listens on a port that a service of kit, a job or a server "
    "needs.",
    "`ss -tlnp` as root on the host shows the program. End it, or write another port into the file "
    "that the finding names.",
)
SERVICE_PORT = Code(
    "KIT-NET-011",
    "ports of the services are open",
    "A firewall closes the port of a data service, an exporter or another service of the platform: "
    "data sets do not arrive, or Prometheus sees nothing.",
    "`kit host prepare HOST --run`, or open the port of the finding by hand.",
    active=True,
)

DATA = Code(
    "KIT-DATA-001",
    "the data set is complete on all hosts",
    "A folder of the job is missing on a host, empty, or differs from the other hosts'.",
    "Copy the data from a host that has all of it.",
    active=True,
)
FOLDERS = Code(
    "KIT-DATA-002",
    "mounted folders exist",
    "The job mounts a folder that does not exist on the host.",
    "Make the folder on the host, or correct `mounts:` of the job.",
    quick=True,
)
ROOM = Code(
    "KIT-DATA-003",
    "data sets fit the disks and the caches",
    "The data sets that a host's jobs name, or on the storage host those of all jobs, are larger "
    "than its disk, than the free part of it, or than `data: {cache: …}`.",
    "Raise `cache`, use a larger disk, or stream the data set: `{name: NAME, stream: true}`.",
)
HEALTH = Code(
    "KIT-DATA-004",
    "the data services are healthy",
    "The data server or a data agent runs and does not answer its health check.",
    "Look at its log on the host: `docker logs CONTAINER`.",
)

_ALL = [
    each
    for names in (vars(host_codes), globals().copy())
    for each in names.values()
    if isinstance(each, Code)
]
CODES = {each.id: each for each in _ALL}
"""All codes, in the order of the documentation."""
assert len(CODES) == len(_ALL)
