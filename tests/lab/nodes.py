"""The nodes: containers on their own network, and faults of machines and links."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tests.lab.files import inventory, make_keys, node_files, remove, write_ssh_config
from tests.lab.host import (
    ANSWER,
    Engine,
    close_firewall,
    open_firewall,
    remove_bridge,
    run,
    wait_for,
    works,
)
from tests.lab.images import node_image
from tests.lab.settings import HERE, LabError, Settings, gpu, names

LABEL = "kit.lab"
REGISTERED = 30.0
"""Seconds in which a node that was restarted registers with its manager."""
BATCH = 0.3
"""Seconds in which a manager notes that a session has expired; it collects such changes for 0.1."""


class Nodes:
    """The nodes of one lab."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.settings = settings
        self.engine = engine

    @property
    def _own(self) -> str:
        return f"label={LABEL}={self.settings.name}"

    def all(self) -> list[str]:
        """Return the nodes that there are, running or not."""
        if not self.engine.up():
            return []
        prefix = self.settings.container("")
        found = self._containers("{{.Names}}").splitlines()
        return sorted(name.removeprefix(prefix) for name in found if name != f"{prefix}services")

    def check(self, node: str) -> str:
        """Return the name of an existing node; raises LabError."""
        there = self.all()
        if node not in there:
            nodes = f"there are {', '.join(there)}" if there else "there is none: make lab"
            raise LabError(f"{node!r} is not a node; {nodes}", 2)
        return node

    def up(self, count: int) -> None:
        """Start the nodes that do not run."""
        settings, wanted = self.settings, names(count)
        self.engine.start()
        image = node_image(settings, self.engine)
        make_keys(settings)
        settings.torch.mkdir(exist_ok=True)
        if not self.engine.docker("network", "ls", "-q", f"--filter={self._own}"):
            self._create_network()
        open_firewall(settings.bridge)
        self._create("services", settings.services, image, "/opt/lab/services", "/var/lib/registry")
        for node in wanted:
            node_files(settings, node)
            address = settings.address(node)
            self._create(node, address, image, "/opt/lab/entry", "/var/lib/docker")
        each(lambda name: self.power("start", name), ["services", *wanted])
        write_ssh_config(settings, self.all())
        inventory(settings, self.all(), write=True)

    def down(self) -> None:
        """Remove the nodes with their content, network and files."""
        settings = self.settings
        if settings.folder.exists():
            # The engine may have been killed, or the machine, with the nodes in it.
            self.engine.start()
            found = self._containers("{{.ID}}").split()
            each(lambda one: self.engine.docker("rm", "--force", "--volumes", one), found)
            volumes = self.engine.docker("volume", "ls", "-q", f"--filter={self._own}")
            if volumes:
                self.engine.docker("volume", "rm", *volumes.split())
            self.engine.docker("network", "rm", settings.bridge, check=False)
        close_firewall(settings.bridge)
        remove(settings.folder, ("bin", "inventory.yaml", "keys", "nodes", "ssh_config", "torch"))

    def docker(self, node: str, *arguments: str, check: bool = True) -> str:
        """Call a node's engine."""
        return run("docker", "-H", f"unix://{self.settings.socket(node)}", *arguments, check=check)

    def inside(self, node: str, *command: str) -> str:
        return self.engine.docker("exec", self.settings.container(node), *command)

    def answers(self, node: str) -> bool:
        return works("docker", "-H", f"unix://{self.settings.socket(node)}", "version")

    def power(self, verb: str, node: str) -> None:
        """Act like a power switch or a hung kernel: kill, stop, start, pause, unpause."""
        options = ("-t", "30") if verb == "stop" else ()
        self.engine.docker(verb, *options, self.settings.container(node))
        if verb == "start" and node != "services":
            try:
                wait_for(lambda: self.answers(node), f"{node}'s engine")
                self._enter_swarm(node)
            except LabError as error:
                raise LabError(f"{error}; its log: tests/lab/lab logs {node}") from None

    def restart(self, node: str) -> None:
        """Start a node's engine anew, with the daemon.json that it finds."""
        self.inside(node, "systemctl", "restart", "docker")
        self._enter_swarm(node)

    def _enter_swarm(self, node: str) -> None:
        """Wait until a node that is in a swarm has its state again.

        On a busy machine, an engine's first try may fail, and it makes no second one (moby,
        daemon/cluster/noderunner.go, handleNodeExit): a person would restart it.
        """

        def entered() -> bool:
            found = self.docker(node, "info", "--format", "{{.Swarm.LocalNodeState}}", check=False)
            if found == "error" or (found == "active" and self._is_missed(node)):
                self.inside(node, "systemctl", "restart", "docker")
                return False
            return found in {"active", "inactive", "locked"}

        wait_for(entered, f"{node} to enter its swarm")

    def _is_missed(self, node: str) -> bool:
        """Whether n1 calls a node down whose engine is in the swarm.

        It stays so until the engine restarts: the node has registered while its last session
        expired, three heartbeats after the engine's end (swarmkit, manager/dispatcher, register).
        """
        time.sleep(BATCH)
        own = self.docker(node, "info", "--format", "{{.Swarm.NodeID}}", check=False)
        asked = ("docker", "-H", f"unix://{self.settings.socket('n1')}", "node", "inspect")
        try:
            return run(*asked, "--format={{.Status.State}}", own, seconds=ANSWER) == "down"
        except LabError:
            return False  # n1 is off, or the node is in another swarm.

    def cable(self, verb: str, node: str) -> None:
        """Pull or plug the network cable; the address stays."""
        network = (self.settings.bridge, self.settings.container(node))
        if verb == "connect":
            self.engine.docker("network", verb, "--ip", self.settings.address(node), *network)
        else:
            self.engine.docker("network", verb, "--force", *network)

    def shape(self, node: str, rate: str) -> None:
        """Limit what the node sends; `off` lifts it, and so does pulling the cable."""
        own = self.settings.address(node)
        found = json.loads(self.inside(node, "ip", "-json", "-4", "address"))
        # By address: a replugged interface has another name.
        devices = [
            link["ifname"] for link in found if any(a["local"] == own for a in link["addr_info"])
        ]
        if not devices:
            raise LabError(f"{node} has no network: tests/lab/lab connect {node}", 2)
        place = ("dev", devices[0], "root")
        if rate == "off":
            # The default of a virtual interface; deleting a missing limit would fail.
            self.inside(node, "tc", "qdisc", "replace", *place, "noqueue")
            return
        limit = ("tbf", "rate", rate, "burst", "256k", "latency", "50ms")
        self.inside(node, "tc", "qdisc", "replace", *place, *limit)

    def gpus(self, node: str, models: Iterable[str]) -> None:
        """Replace the node's GPUs, and reload its engine."""
        node_files(self.settings, node, [gpu(node, i, model) for i, model in enumerate(models)])
        self.inside(node, "/opt/lab/install-gpus")
        self.restart(node)
        inventory(self.settings, self.all(), write=True)

    def bare(self, node: str) -> None:
        """Take from a node what a person would have installed: all but the driver and Docker."""
        member = self.docker(node, "info", "--format", "{{.Swarm.NodeID}}")
        wait_for(lambda: self._left(node), f"{node} to leave its swarm")
        if member and node != "n1":
            self.docker("n1", "node", "rm", "--force", member, check=False)
        self.settings.bare(node).touch()
        self.inside(node, "/opt/lab/make-bare")
        self.inside(node, "systemctl", "restart", "docker")

    def _left(self, node: str) -> bool:
        """Have a node leave its swarm; a busy engine may need another call."""
        self.docker(node, "swarm", "leave", "--force", check=False)
        state = self.docker(node, "info", "--format", "{{.Swarm.LocalNodeState}}", check=False)
        return state == "inactive"

    def swarm(self) -> None:
        """Make one swarm of the nodes, n1 its manager, and wait until all are ready."""
        nodes, address = self.all(), self.settings.address
        state = "{{.Swarm.LocalNodeState}}"
        if self.docker("n1", "info", "--format", state) != "active":
            heartbeat = f"--dispatcher-heartbeat={self.settings.heartbeat}"
            self.docker("n1", "swarm", "init", "--advertise-addr", address("n1"), heartbeat)
        token = self.docker("n1", "swarm", "join-token", "--quiet", "worker")

        def joined(node: str) -> bool:
            if self.docker(node, "info", "--format", state) == "active":
                return True
            own = ("--token", token, "--advertise-addr", address(node))
            # A manager on a busy machine may refuse connections for a moment.
            self.docker(node, "swarm", "join", *own, f"{address('n1')}:2377", check=False)
            return False

        def join(node: str) -> None:
            wait_for(lambda: joined(node), f"{node} to join")

        each(join, [node for node in nodes if node != "n1"])
        with suppress(LabError):
            wait_for(lambda: self.ready() >= set(nodes), "all nodes to be ready", REGISTERED)
        # Engines that others restarted: see `_is_missed`.
        each(self.restart, sorted(set(nodes) - self.ready()))
        wait_for(lambda: self.ready() >= set(nodes), "all nodes to be ready")

    def ready(self) -> set[str]:
        """The nodes that the swarm calls ready, as n1 knows them."""
        form = "--format={{.Status}} {{.Hostname}}"
        command = ("docker", "-H", f"unix://{self.settings.socket('n1')}", "node", "ls", form)
        try:
            listed = run(*command, seconds=ANSWER)
        except LabError:
            return set()
        return {line.split()[1] for line in listed.splitlines() if line.startswith("Ready ")}

    def _containers(self, form: str) -> str:
        return self.engine.docker("ps", "--all", f"--filter={self._own}", f"--format={form}")

    def _create_network(self) -> None:
        settings = self.settings
        addresses = ("--subnet", f"{settings.network}.0/24", "--gateway", f"{settings.network}.1")
        name = ("--opt", f"com.docker.network.bridge.name={settings.bridge}")
        own = ("--label", f"{LABEL}={settings.name}")
        remove_bridge(settings.bridge)
        self.engine.docker("network", "create", *own, *addresses, *name, settings.bridge)

    def _create(self, name: str, address: str, image: str, entry: str, data: str) -> None:
        settings, own = self.settings, f"{LABEL}={self.settings.name}"
        container = settings.container(name)
        addresses = {node: settings.address(node) for node in names(9)}
        addresses["registry.lab"] = settings.services
        known = " ".join(f"{name}={address}" for name, address in addresses.items())
        volumes = {
            container: data,
            HERE / "node": "/opt/lab:ro",
            settings.keys: "/etc/kit-lab:ro",
            settings.torch: "/opt/torch:ro",
        }
        if name != "services":
            volumes |= {settings.node(name): "/lab", settings.node(name) / "docker": "/etc/docker"}
        options = [
            *(f"--hostname={name}", f"--label={own}", f"--network={settings.bridge}"),
            *(
                f"--ip={address}",
                f"--env=LAB_NAMES={settings.services}",
                f"--env=LAB_HOSTS={known}",
            ),
            # Not --privileged: that fails on machines without CAP_SYS_RESOURCE, as CI's are. No
            # node has it anywhere, so that one way is tested.
            *("--cap-add=ALL", "--cap-drop=SYS_RESOURCE", "--device-cgroup-rule=a *:* rmw"),
            *("--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"),
            *("--security-opt=systempaths=unconfined", "--cgroupns=private"),
            "--tmpfs=/run:exec,dev",
            *(f"--volume={source}:{target}" for source, target in volumes.items()),
        ]
        recipe = hashlib.sha256(repr((options, image, entry)).encode()).hexdigest()
        form = '--format={{index .Config.Labels "kit.lab.recipe"}}'
        if self.engine.docker("container", "inspect", form, container, check=False) == recipe:
            return
        # Of an older lab: it is recreated, its volume stays.
        self.engine.docker("rm", "--force", container, check=False)
        self.engine.docker("volume", "create", "--label", own, container)
        label = f"--label=kit.lab.recipe={recipe}"
        self.engine.docker("create", f"--name={container}", label, *options, image, entry)


def each(work: Callable[[str], object], names: Iterable[str]) -> None:
    """Do the work for all names concurrently; raise the first failure."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(work, names))
