"""The faults: how each is made on a node, how it is corrected, and the code that names it.

The nodes share the kernel of this machine: of its clock, its log, its memory and its settings, a
node sees a changed copy. All else is broken for real.
"""

from __future__ import annotations

from dataclasses import dataclass, field

IMAGE = "registry.lab:5000/trainer:lab"
DATA = "/srv/mnist"
UUID = "$(nvidia-smi --query-gpu=uuid --format=csv,noheader | head -n 1)"
N3 = "$(docker node ls | awk '/ n3 .*Ready/ {print $1}')"
"""The ID of the node: a host that has joined again has several of one name."""
CONFIG = "/etc/nvidia-container-runtime/config.toml"
HOST_NETWORK = ("network: {", "network: {driver: host, ")
MONITORED = ("network: {", "monitoring: {}\nnetwork: {")
LISTENS = "import socket, time; s = socket.create_server(('', 3000)); time.sleep(600)"


@dataclass(frozen=True)
class Fault:
    """Something wrong on `node`; `inject` and `heal` are scripts that run there as root.

    `edits` are changes of the inventory or the job, for this fault and for the healthy run after
    it: (before, after). `torch` are the CUDA and the architectures of the image's PyTorch. `wrong`
    are edits of the fault alone, corrected with it. `bridge_mtu` is that of the node's cable.
    """

    name: str
    code: str
    node: str
    inject: str = ""
    heal: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    wrong: tuple[tuple[str, str], ...] = ()
    torch: tuple[str, str] | None = None
    bridge_mtu: int | None = None
    evidence: str = field(default="", compare=False)


def _closed(name: str, code: str, node: str, rule: str, **rest: object) -> Fault:
    command = f"INPUT {rule} -j DROP"
    inject, heal = f"iptables -I {command}", f"iptables -D {command}"
    return Fault(name, code, node, inject, heal, **rest)  # type: ignore[arg-type]


def _gpu(name: str, code: str, line: str) -> Fault:
    """A GPU of n2 that reports something: the stand-in of nvidia-smi reads the file."""
    return Fault(name, code, "n2", f'echo "{UUID} {line}" >/lab/faults', "rm -f /lab/faults")


def _mounted(name: str, code: str, node: str, file: str, change: str) -> Fault:
    """A value of the kernel, which all nodes share: the node sees a copy with a change."""
    copy = "/run/kit-fault"
    inject = f"sed '{change}' {file} >{copy} && mount --bind {copy} {file}"
    return Fault(name, code, node, inject, f"umount {file}; rm -f {copy}")


def _config(name: str, code: str, line: str) -> Fault:
    return Fault(name, code, "n2", f"sed -i '1i {line}' {CONFIG}", "/opt/lab/install-gpus")


def _version(name: str, code: str, version: str) -> Fault:
    """Another version of the same length in a copy of the engine."""
    copy = "/usr/local/sbin/dockerd"
    inject = (
        "now=$(docker version --format '{{.Server.Version}}'); now=${now%+*}; "
        f'sed "s/$now/{version}/g" /usr/sbin/dockerd >{copy}; chmod +x {copy}; '
        "systemctl restart docker"
    )
    return Fault(name, code, "n3", inject, f"rm -f {copy}; systemctl restart docker")


def _daemon(name: str, code: str, node: str, change: str, before: str = ":") -> Fault:
    file = "/etc/docker/daemon.json"
    inject = (
        f"{before}; cp {file} /run/daemon.json; jq '{change}' /run/daemon.json >{file}; "
        "systemctl restart docker"
    )
    heal = f"cp /run/daemon.json {file}; rm -rf /run/systemd/system; systemctl restart docker"
    return Fault(name, code, node, inject, heal)


FAULTS = (
    _closed("no SSH server answers", "KIT-SSH-001", "n3", "-p tcp --dport 22"),
    Fault(
        "a script delays each login by 4 s",
        "KIT-SSH-002",
        "n2",
        "echo 'sleep 4' >/etc/ssh/sshrc",
        "rm /etc/ssh/sshrc",
    ),
    Fault("n3 has the host name of n2", "KIT-HOST-001", "n3", "hostname n2", "hostname n3"),
    Fault("the clock is 90 s ahead", "KIT-HOST-002", "n3", "echo 90 >/lab/clock", "rm /lab/clock"),
    Fault(
        "the disk of the volumes is full",
        "KIT-HOST-003",
        "n3",
        "mount -t tmpfs -o size=100m tmpfs /var/lib/docker/volumes",
        "umount /var/lib/docker/volumes",
    ),
    Fault(
        "the name server does not answer",
        "KIT-HOST-004",
        "n3",
        "iptables -I INPUT -p udp --sport 53 -j DROP",
        "iptables -D INPUT -p udp --sport 53 -j DROP",
    ),
    _mounted(
        "8 GB of swap are in use",
        "KIT-HOST-005",
        "n2",
        "/proc/meminfo",
        "s/^SwapTotal.*/SwapTotal: 8388604 kB/;s/^SwapFree.*/SwapFree: 4 kB/",
    ),
    _mounted(
        "memory may not be overcommitted",
        "KIT-HOST-006",
        "n1",
        "/proc/sys/vm/overcommit_memory",
        "s/.*/2/",
    ),
    _daemon(
        "Docker leaves device rules to systemd",
        "KIT-HOST-007",
        "n2",
        '.["exec-opts"] = ["native.cgroupdriver=systemd"]',
        "mkdir -p /run/systemd/system",
    ),
    Fault(
        "the job plans more /dev/shm than there is memory",
        "KIT-HOST-008",
        "n1",
        wrong=(("shared_memory: 256MiB", "shared_memory: 4TiB"),),
    ),
    Fault(
        "Docker is stopped",
        "KIT-DOCKER-001",
        "n3",
        "systemctl stop docker",
        "systemctl start docker",
    ),
    _version("n3 has an older release of Docker", "KIT-DOCKER-002", "26.0.2"),
    _version("n3 has a Docker with a known fault", "KIT-DOCKER-003", "24.0.7"),
    Fault(
        "the image's tag is another image",
        "KIT-DOCKER-004",
        "n2",
        f"docker create --name kit-fault {IMAGE} && docker commit kit-fault {IMAGE}; "
        "docker rm kit-fault",
        f"docker pull -q {IMAGE}; docker image prune -f",
    ),
    Fault(
        "the runtime of containers is missing",
        "KIT-DOCKER-005",
        "n3",
        "mv /usr/sbin/runc /usr/sbin/runc.away",
        "mv /usr/sbin/runc.away /usr/sbin/runc",
    ),
    Fault(
        "Docker may give 1,024 open files",
        "KIT-DOCKER-006",
        "n2",
        "prlimit --pid $(pidof containerd) --nofile=1024:1024",
        "systemctl restart docker",
    ),
    Fault(
        "the driver does not answer",
        "KIT-GPU-001",
        "n1",
        "mv /dev/nvidiactl /dev/nvidiactl.away",
        "mv /dev/nvidiactl.away /dev/nvidiactl",
    ),
    Fault(
        "a GPU has fallen off the bus",
        "KIT-GPU-002",
        "n2",
        "cp /dev/nvidia-table /run/table; sed 2d /run/table >/dev/nvidia-table",
        "cp /run/table /dev/nvidia-table",
    ),
    Fault(
        "the container toolkit is missing",
        "KIT-GPU-003",
        "n1",
        "rm /usr/bin/nvidia-ctk /usr/bin/nvidia-container-runtime*",
        "/opt/lab/install-gpus",
    ),
    _config(
        "the toolkit refuses the variable that pins GPUs",
        "KIT-GPU-004",
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false",
    ),
    _config(
        "swarm-resource claims kit's GPUs",
        "KIT-GPU-005",
        'swarm-resource = "DOCKER_RESOURCE_KIT_GPU"',
    ),
    _daemon("daemon.json lists no GPU", "KIT-GPU-006", "n2", 'del(.["node-generic-resources"])'),
    Fault(
        "the toolkit gives each container all GPUs",
        "KIT-GPU-007",
        "n2",
        # The job gets one of its two GPUs here.
        "rm /usr/bin/nvidia-container-runtime-hook; "
        "sed 's/^\\[\\[ $wanted && /[[ $wanted == void ]] || wanted=all; &/' "
        "/opt/lab/nvidia-container-runtime-hook >/usr/bin/nvidia-container-runtime-hook; "
        "chmod +x /usr/bin/nvidia-container-runtime-hook",
        "/opt/lab/install-gpus",
        edits=(("model: Quadro GV100,", "model: Quadro GV100, use: none,"),),
    ),
    Fault(
        "somebody's container sees all GPUs",
        "KIT-GPU-008",
        "n2",
        f"docker run -d --name thief -e NVIDIA_VISIBLE_DEVICES=all --entrypoint sleep {IMAGE} 600",
        "docker rm -f thief",
    ),
    Fault(
        "the driver is too old for the image's CUDA",
        "KIT-GPU-009",
        "n1",
        "echo '* driver_version 470.57.02' >/lab/faults",
        "rm /lab/faults",
        torch=("12.6", "sm_70 sm_75 sm_80"),
    ),
    Fault(
        "the image's torch does not know the GPU",
        "KIT-GPU-010",
        "n2",
        torch=("12.6", "sm_75 sm_80 sm_90"),
    ),
    Fault(
        "the driver has logged XID 79",
        "KIT-GPU-011",
        "n2",
        "echo '[ 4711.250000] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.' "
        ">/lab/kernel-log",
        "rm /lab/kernel-log",
    ),
    _gpu("a GPU has memory errors", "KIT-GPU-012", "ecc.errors.uncorrected.volatile.total 3"),
    _gpu("a row of memory waits for a reset", "KIT-GPU-013", "remapped_rows.pending Yes"),
    _gpu("a GPU is too hot", "KIT-GPU-014", "clocks_event_reasons.active 0x0000000000000048"),
    _gpu("the power of a GPU is limited", "KIT-GPU-015", "power.limit 150.00"),
    _gpu("persistence mode is off", "KIT-GPU-016", "persistence_mode Disabled"),
    Fault(
        "another process computes on a GPU",
        "KIT-GPU-017",
        "n2",
        f'sleep 600 >/dev/null 2>&1 & echo "process {UUID} $! 8192 python3" >/lab/faults',
        "kill $(cut -d' ' -f3 /lab/faults); rm /lab/faults",
    ),
    Fault(
        "n3 is drained",
        "KIT-SWARM-001",
        "n1",
        f"docker node update --availability drain {N3}",
        f"docker node update --availability active {N3}",
    ),
    Fault(
        "a node has lost its label",
        "KIT-SWARM-002",
        "n1",
        "docker node update --label-rm kit.job.mnist n2",
        "docker node update --label-add kit.job.mnist=train-on-n2 n2",
    ),
    Fault(
        "one of two managers cannot be reached",
        "KIT-SWARM-003",
        "n1",
        "docker node promote n2; sleep 3; "
        "iptables -I INPUT -p tcp -s $(getent hosts n2 | cut -d' ' -f1) -j DROP; "
        "for i in 1 2 3 4 5 6 7 8 9 10; do docker node ls >/dev/null 2>&1 || break; sleep 2; done",
        "iptables -D INPUT -p tcp -s $(getent hosts n2 | cut -d' ' -f1) -j DROP; "
        "until docker node ls 2>/dev/null | grep -q Leader; do sleep 1; done; "
        "until docker node demote n2; do sleep 1; done; sleep 3",
    ),
    Fault(
        "the certificate of n3 has expired",
        "KIT-SWARM-004",
        "n3",
        "systemctl stop docker; cd /var/lib/docker/swarm/certificates; cp -a . /run/certificates; "
        # The key without Docker's own headers.
        "grep -v : swarm-node.key | grep . >/run/node.key; "
        "openssl req -x509 -key /run/node.key -subj /CN=expired "
        "-not_before 20260101000000Z -not_after 20260401000000Z -out /run/expired.crt; "
        "rm /run/node.key; mv /run/expired.crt swarm-node.crt; systemctl start docker; sleep 1",
        "systemctl stop docker; rm -rf /var/lib/docker/swarm/certificates; "
        "cp -a /run/certificates /var/lib/docker/swarm/certificates; rm -r /run/certificates; "
        "systemctl start docker",
    ),
    Fault(
        "n3 has joined with another address",
        "KIT-SWARM-005",
        "n3",
        "other=$(echo ADDRESS-n3 | cut -d. -f1-3).33; ip addr add $other/24 dev eth0; "
        "docker swarm leave; "
        "docker swarm join --token $(cat /lab/token) --advertise-addr $other ADDRESS-n1:2377",
        "other=$(echo ADDRESS-n3 | cut -d. -f1-3).33; docker swarm leave; "
        "ip addr del $other/24 dev eth0; "
        "docker swarm join --token $(cat /lab/token) --advertise-addr ADDRESS-n3 ADDRESS-n1:2377",
    ),
    _closed("2377/tcp of the manager is closed", "KIT-NET-001", "n1", "-p tcp --syn --dport 2377"),
    _closed("7946/tcp is closed", "KIT-NET-002", "n2", "-p tcp --syn --dport 7946"),
    _closed("7946/udp is closed", "KIT-NET-003", "n3", "-p udp --dport 7946"),
    _closed("4789/udp is closed", "KIT-NET-004", "n2", "-p udp --dport 4789"),
    Fault("the cable carries smaller packets", "KIT-NET-005", "n2", bridge_mtu=1400),
    Fault(
        "the overlay's tunnel is down on one host",
        "KIT-NET-006",
        "n3",
        f"docker run -d --name stays --network CLUSTER-training --entrypoint sleep {IMAGE} 600; "
        "for net in /run/docker/netns/1-*; do "
        "for dev in $(nsenter --net=$net ip -o link show type vxlan | cut -d: -f2 | cut -d@ -f1); "
        "do nsenter --net=$net ip link set $dev down; done; done",
        "docker rm -f stays",
    ),
    _closed(
        "the port of the coordinator is closed",
        "KIT-NET-007",
        "n1",
        "-p tcp --syn --dport 29400:30399",
        edits=(HOST_NETWORK,),
    ),
    Fault(
        "the inventory names an interface that n2 lacks",
        "KIT-NET-008",
        "n2",
        edits=(HOST_NETWORK,),
        wrong=(("address: ADDRESS-n2", "interface: eth9\n    address: ADDRESS-n2"),),
    ),
    Fault(
        "packets to n1 leave by another address",
        "KIT-NET-008",
        "n2",
        "n1=$(getent hosts n1 | cut -d' ' -f1); ip addr add 10.99.0.2/32 dev eth0; "
        "ip route add $n1/32 dev eth0 src 10.99.0.2",
        "n1=$(getent hosts n1 | cut -d' ' -f1); ip route del $n1/32 dev eth0; "
        "ip addr del 10.99.0.2/32 dev eth0",
    ),
    _closed(
        "a firewall closes high ports",
        "KIT-NET-009",
        "n3",
        "-p tcp --syn --dport 32768:60999",
        edits=(HOST_NETWORK,),
    ),
    Fault(
        "a program listens on the port of Grafana",
        "KIT-NET-010",
        "n1",
        f'python3 -c "{LISTENS}" </dev/null >/dev/null 2>&1 & echo $! >/run/listens; sleep 1',
        "kill $(cat /run/listens); rm /run/listens",
        edits=(MONITORED,),
    ),
    _closed(
        "a firewall closes the port of an exporter",
        "KIT-NET-011",
        "n2",
        "-p tcp --syn --dport 9100",
        edits=(MONITORED,),
    ),
    Fault(
        "a file of the data set is missing",
        "KIT-DATA-001",
        "n2",
        f"mv {DATA}/train-labels-idx1-ubyte /srv/away",
        f"mv /srv/away {DATA}/train-labels-idx1-ubyte",
    ),
    Fault(
        "a file of the data set was cut short",
        "KIT-DATA-001",
        "n2",
        f"cp {DATA}/train-images-idx3-ubyte /srv/whole; "
        f"truncate -s 100 {DATA}/train-images-idx3-ubyte",
        f"mv /srv/whole {DATA}/train-images-idx3-ubyte",
    ),
    Fault(
        "the folder of the data is missing",
        "KIT-DATA-002",
        "n1",
        f"mv {DATA} {DATA}.away",
        f"mv {DATA}.away {DATA}",
    ),
    Fault(
        "a data set is larger than the cache of a host",
        "KIT-DATA-003",
        "n2",
        edits=(("mounts:", "data: [flowers]\nmounts:"),),
        wrong=(("data: {image", "data: {cache: 1GiB, image"),),
    ),
)
