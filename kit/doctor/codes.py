"""The codes of all findings: stable names that lead to the documentation. Pure."""

from __future__ import annotations

from dataclasses import dataclass

PAGE = "docs/troubleshooting.md"


@dataclass(frozen=True, slots=True)
class Code:
    """A check. `title` is true if all is well; `cause` and `remedy` are for the documentation.

    `active`: it starts a container. `quick`: `kit deploy` does it, too.
    """

    id: str
    title: str
    cause: str
    remedy: str
    active: bool = False
    quick: bool = False

    @property
    def anchor(self) -> str:
        """The place in the documentation."""
        return f"{PAGE}#{self.id.lower()}"


CODES: dict[str, Code] = {}


def _code(
    name: str, title: str, cause: str, remedy: str, *, active: bool = False, quick: bool = False
) -> Code:
    assert name not in CODES
    CODES[name] = Code(name, title, cause, remedy, active, quick)
    return CODES[name]


SSH = _code(
    "KIT-SSH-001",
    "SSH logs in",
    "The host is off, the name or the key is wrong, or no SSH server runs.",
    "Run the `ssh` command of the finding. Load the key into your agent.",
)
SSH_TIME = _code(
    "KIT-SSH-002",
    "SSH logs in quickly",
    "The SSH server looks up names that nobody answers (`UseDNS`), or a login script is slow. Each "
    "command of kit waits for it.",
    "Write `UseDNS no` into sshd_config. Look at `/etc/ssh/sshrc` and `~/.ssh/rc`.",
)

HOSTNAME = _code(
    "KIT-HOST-001",
    "host names are unique",
    "Two hosts have the same host name, as copies of one disk have. `docker node ls` and logs "
    "cannot tell them apart.",
    "`hostnamectl set-hostname NAME` on one of them, then restart Docker there.",
)
CLOCK = _code(
    "KIT-HOST-002",
    "clocks agree",
    "The clock of a host is wrong by more than a second. Certificates of the Swarm are refused, "
    "logs and leases are confused.",
    "`timedatectl set-ntp true`; look at `timedatectl timesync-status`.",
)
DISK = _code(
    "KIT-HOST-003",
    "disks have room",
    "The disk of Docker's images and volumes, or of a mounted folder, is almost full.",
    "`docker system df`, `docker image prune -a`; move data, or use a larger disk.",
)
DNS = _code(
    "KIT-HOST-004",
    "names resolve without a stall",
    "A name server of the host does not answer. Pulls, logins and the start of jobs wait for it.",
    "Look at `/etc/resolv.conf` and `resolvectl status`; take out the server that is silent.",
)
SWAP = _code(
    "KIT-HOST-005",
    "no swap is in use",
    "The host swaps. One host that swaps slows all ranks.",
    "`swapoff -a` as root, or see which process uses the memory.",
)
OVERCOMMIT = _code(
    "KIT-HOST-006",
    "memory may be overcommitted",
    "`vm.overcommit_memory` is 2: CUDA reserves far more address space than it uses, and fails.",
    "`sysctl -w vm.overcommit_memory=0` as root, and the same line in `/etc/sysctl.d`.",
)
CGROUP = _code(
    "KIT-HOST-007",
    "daemon-reload takes no GPU away",
    "Docker leaves device rules to systemd, and systemd does not know the GPUs: "
    "`systemctl daemon-reload` takes them from running containers.",
    "`nvidia-ctk system create-dev-char-symlinks --create-all` as root and by a udev rule, or "
    '`"exec-opts": ["native.cgroupdriver=cgroupfs"]` in daemon.json.',
)
MEMORY = _code(
    "KIT-HOST-008",
    "the planned /dev/shm fits the memory",
    "The job plans more shared memory than the host has memory.",
    "Write a smaller `limits: {shared_memory: …}` into the job.",
)

DOCKER = _code(
    "KIT-DOCKER-001",
    "docker works without sudo",
    "Docker is not installed or does not run, or the user is not in the group `docker`.",
    "`sudo usermod -aG docker $USER` and log in again, or `systemctl status docker`.",
    quick=True,
)
VERSION = _code(
    "KIT-DOCKER-002",
    "one version of Docker",
    "The hosts have different versions of Docker. Managers and workers of one Swarm should be of "
    "one release.",
    "Install the newest of the versions on all hosts.",
)
FAULTY = _code(
    "KIT-DOCKER-003",
    "no version with a known fault",
    "This version of Docker or of the NVIDIA toolkit has a fault that concerns kit.",
    "Install the version that the finding names.",
    quick=True,
)
IMAGE = _code(
    "KIT-DOCKER-004",
    "images are the same on all hosts",
    "A tag means another image on this host: ranks would run different code.",
    "`docker pull IMAGE` on the hosts, or pin all images with `kit image lock`.",
)
START = _code(
    "KIT-DOCKER-005",
    "containers start",
    "Docker cannot start a container of the job's image.",
    "Run the `docker run` command of the finding on the host.",
    active=True,
)
LIMITS = _code(
    "KIT-DOCKER-006",
    "tasks get their /dev/shm and open files",
    "A container gets less shared memory or fewer open files than the job asks for. DataLoader "
    "workers and NCCL fail.",
    "Raise `LimitNOFILE` of the service docker (`systemctl edit docker`), then restart it.",
    active=True,
)

ENGINE = _code(
    "KIT-DOCKER-007",
    "docker is the host's own Docker Engine",
    "Podman, nerdctl, rootless Docker, Docker Desktop, the snap of Docker or the engine of another "
    "machine answers to `docker`. None of them has Swarm, the host's network, its GPUs by "
    "NVIDIA's toolkit and its folders together.",
    "Remove it, or have `docker` use the host's engine again (`docker context use default`, no "
    "`DOCKER_HOST`); then `kit host prepare --run --install-docker HOST`.",
    quick=True,
)

SMI = _code(
    "KIT-GPU-001",
    "nvidia-smi works",
    "The driver is not loaded, or does not fit its library after an upgrade.",
    "Reboot after an upgrade of the driver; otherwise install it again.",
    quick=True,
)
PRESENT = _code(
    "KIT-GPU-002",
    "planned GPUs exist",
    "A GPU of the inventory is missing: it fell off the bus, was taken out, or the UUID is wrong "
    "or cut short.",
    "Look at `nvidia-smi -L` and at XID 79 in the kernel's log; reboot, or `kit discover HOST`.",
    quick=True,
)
TOOLKIT = _code(
    "KIT-GPU-003",
    "the NVIDIA container toolkit is set up",
    "The toolkit is not installed, or Docker's daemon.json does not name its runtime.",
    "Install nvidia-container-toolkit and merge `hosts/HOST/daemon.json`; `kit host prepare` does "
    "both.",
    quick=True,
)
MODE = _code(
    "KIT-GPU-004",
    "the toolkit respects the pin of GPUs",
    "The toolkit's settings ignore `NVIDIA_VISIBLE_DEVICES`, by which kit pins GPUs: unprivileged "
    "containers may not use it, or devices are injected by CDI.",
    "In `/etc/nvidia-container-runtime/config.toml`: "
    '`accept-nvidia-visible-devices-envvar-when-unprivileged = true`, `mode = "auto"`.',
)
RESOURCE = _code(
    "KIT-GPU-005",
    "swarm-resource leaves kit's GPUs alone",
    "`swarm-resource` of the toolkit names `DOCKER_RESOURCE_KIT_GPU`: then Swarm's choice of a GPU "
    "beats the plan's.",
    "Take that line out of `/etc/nvidia-container-runtime/config.toml`.",
)
OFFERED = _code(
    "KIT-GPU-006",
    "Docker offers the GPUs to Swarm",
    "`node-generic-resources` of daemon.json does not list the GPUs of the inventory.",
    "Merge `hosts/HOST/daemon.json`, then restart Docker on the host.",
    quick=True,
)
SEES = _code(
    "KIT-GPU-007",
    "containers see the planned GPUs and no others",
    "A container that was given some GPUs sees others.",
    "Look at the toolkit's configuration and version on that host.",
    active=True,
)
VOID = _code(
    "KIT-GPU-008",
    "services without GPUs see none",
    "A container that needs no GPU sees some: its image asks for all, and nvidia is the default "
    "runtime.",
    "Start it with `NVIDIA_VISIBLE_DEVICES=void`.",
    active=True,
)
DRIVER = _code(
    "KIT-GPU-009",
    "the driver is new enough for the image's CUDA",
    "CUDA in the image needs a newer driver than the host has.",
    "Install a newer driver, or use an image with an older CUDA.",
    active=True,
)
CAPABILITY = _code(
    "KIT-GPU-010",
    "the image's torch runs on the GPUs",
    "The torch of the image was not built for the compute capability of a GPU.",
    "Use an image whose torch supports the oldest GPU: `kit image build --base`.",
    active=True,
)
XID = _code(
    "KIT-GPU-011",
    "no XID error since the start",
    "The driver has logged an error (XID) of a GPU.",
    "Look up the number in NVIDIA's XID catalogue. For 48, 63, 64, 74, 79, 92, 94 and 95: reset or "
    "replace the GPU.",
)
ECC = _code(
    "KIT-GPU-012",
    "no uncorrected memory error",
    "The memory of a GPU had errors that ECC could not correct.",
    "Reset the GPU (`nvidia-smi --gpu-reset -i UUID` as root). Replace it if they return.",
)
ROWS = _code(
    "KIT-GPU-013",
    "no row of memory waits for its replacement",
    "A GPU must be reset to replace a row of its memory, or has no spare rows left.",
    "Reset the GPU; after a failure replace it.",
)
THROTTLE = _code(
    "KIT-GPU-014",
    "no GPU is slowed down",
    "A GPU runs slower because of heat or of its power supply. One slow GPU slows all ranks.",
    "Look at fans, dust and power cables: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE`.",
)
POWER = _code(
    "KIT-GPU-015",
    "power limits are the default",
    "Somebody has lowered the power limit of a GPU.",
    "`nvidia-smi -i UUID -pl WATTS` as root, unless that was intended.",
)
PERSISTENCE = _code(
    "KIT-GPU-016",
    "persistence mode is on",
    "Without it each first use of a GPU takes seconds, and limits are lost.",
    "`nvidia-smi -pm 1` as root, or enable nvidia-persistenced.",
)
BUSY = _code(
    "KIT-GPU-017",
    "no other process uses the GPUs",
    "A process outside kit's containers uses a planned GPU: a job may run out of memory.",
    "End the process, or take the GPU out of the inventory (`use: none`).",
)
LISTED = _code(
    "KIT-GPU-018",
    "all GPUs of the host are listed",
    "The PCI bus has a GPU that nvidia-smi does not list, or nvidia-smi reports an error of a GPU: "
    "it is lost, or another driver has it (`vfio-pci` gives it to a virtual machine).",
    "Look at `lspci -nnk -d 10de:` and `sudo dmesg | grep NVRM`; reset or reboot. Look at power "
    "and seat of the card if it returns.",
)
LOST = _code(
    "KIT-GPU-019",
    "no GPU was lost since the start",
    "The kernel's log says that a GPU has fallen off the bus, or that the driver could not start "
    "it, without an XID.",
    "Switch the host off and on. Look at power and seat of the card if it returns.",
)
MIG = _code(
    "KIT-GPU-020",
    "GPUs with MIG on have instances",
    "MIG is on and the GPU has no instance, as after a reboot: nothing can run on it.",
    "`nvidia-smi -i UUID -mig 0` as root, or make instances (`nvidia-smi mig -i UUID -cgi PROFILE "
    "-C`), then `kit discover HOST`.",
)
FABRIC = _code(
    "KIT-GPU-021",
    "the fabric of NVSwitches, if any, is ready",
    "The GPUs are connected by NVSwitches, and the fabric manager does not run or has failed: CUDA "
    "fails with error 802, `system not yet initialized`.",
    "`systemctl status nvidia-fabricmanager`; its version must be that of the driver. Start it "
    "with `systemctl enable --now nvidia-fabricmanager`.",
)
SXID = _code(
    "KIT-GPU-022",
    "no SXid error since the start",
    "An NVSwitch has logged an error (SXid).",
    "Look up the number in NVIDIA's Fabric Manager User Guide. After a fatal one reset all GPUs "
    "and NVSwitches, or reboot.",
)
COMPUTES = _code(
    "KIT-GPU-023",
    "GPUs compute",
    "A container was given a GPU and cannot write and read its memory by CUDA, though nvidia-smi "
    "lists it.",
    "The error's name and number are those of CUDA's driver. 802: the fabric manager; 999 and 46: "
    "reset the GPU or reboot.",
    active=True,
)

MEMBER = _code(
    "KIT-SWARM-001",
    "hosts are ready nodes of one Swarm",
    "The host is in no Swarm, in another one, down, drained or locked.",
    "`kit swarm up`; for a drained node `docker node update --availability active NODE`.",
)
LABELS = _code(
    "KIT-SWARM-002",
    "nodes have their labels",
    "Placement needs labels that are missing or old.",
    "`kit swarm up`.",
)
QUORUM = _code(
    "KIT-SWARM-003",
    "managers have a quorum",
    "Too few managers are reachable: nothing can be started or changed.",
    "Start the managers that are down. Use an odd number, three or five.",
)
CERTIFICATE = _code(
    "KIT-SWARM-004",
    "certificates are valid",
    "The certificate of a node has expired or is about to: the node was off for months, or its "
    "clock is wrong.",
    "`docker swarm ca --rotate` on a manager; an expired node leaves and joins again.",
)
ADVERTISED = _code(
    "KIT-SWARM-005",
    "nodes use the address of the inventory",
    "The node joined the Swarm with another address: the training uses another network.",
    "On the host `docker swarm leave`, then `kit swarm up`.",
)

MANAGER_PORT = _code(
    "KIT-NET-001",
    "2377/tcp of the managers is open",
    "A firewall closes the port by which nodes reach managers.",
    "Open 2377/tcp on the managers: `ufw allow from SUBNET to any port 2377 proto tcp`.",
    active=True,
)
GOSSIP_TCP = _code(
    "KIT-NET-002",
    "7946/tcp is open",
    "A firewall closes the port by which nodes find each other.",
    "`ufw allow from SUBNET to any port 7946`, on the host that the arrow points to.",
    active=True,
)
GOSSIP_UDP = _code(
    "KIT-NET-003",
    "7946/udp is open",
    "A firewall closes the port by which nodes find each other: names of containers do not resolve "
    "on other hosts.",
    "`ufw allow from SUBNET to any port 7946`, on the host that the arrow points to.",
    active=True,
)
VXLAN = _code(
    "KIT-NET-004",
    "4789/udp is open",
    "A firewall closes the port of the overlay network: containers of different hosts cannot reach "
    "each other. Some virtual machines' hosts use this port themselves.",
    "`ufw allow from SUBNET to any port 4789 proto udp`, on the host that the arrow points to.",
    active=True,
)
MTU = _code(
    "KIT-NET-005",
    "packets of the planned MTU pass",
    "The path between two hosts carries smaller packets than `network: {mtu: …}` says. Small "
    "messages pass, large ones hang.",
    "Write the MTU of the finding into the inventory, or correct it on the host or the switch.",
    active=True,
)
OVERLAY = _code(
    "KIT-NET-006",
    "the overlay carries data between all hosts",
    "Containers on the overlay network cannot exchange data.",
    "See the findings on 4789/udp, 7946 and the MTU first; then restart Docker on that host.",
    active=True,
)
RENDEZVOUS = _code(
    "KIT-NET-007",
    "the rendezvous can be reached",
    "A host cannot connect to the host and port where the ranks meet.",
    "Open the port of the finding on the host that it names.",
    active=True,
)
HIGH_PORTS = _code(
    "KIT-NET-009",
    "ports of the training are open",
    "On the hosts' own network ranks connect to any port of each other, and a firewall closes "
    "them.",
    "`ufw allow from SUBNET`, on the host that the arrow points to.",
    active=True,
)
INTERFACE = _code(
    "KIT-NET-008",
    "the training uses the planned interface",
    "The address of the inventory is on no interface of the host, the interface is missing, down "
    "or slower than the inventory says, or packets to other hosts leave by another one.",
    "Correct `address`, `interface` or `speed` in the inventory, or the host's routes.",
)

USED_PORT = _code(
    "KIT-NET-010",
    "ports of the services are free or their own",
    "Another program or container listens on a port that a service of kit, a job or a server "
    "needs.",
    "`ss -tlnp` as root on the host shows the program. End it, or write another port into the file "
    "that the finding names.",
)
SERVICE_PORT = _code(
    "KIT-NET-011",
    "ports of the services are open",
    "A firewall closes the port of a data service, an exporter or another service of the platform: "
    "data sets do not arrive, or Prometheus sees nothing.",
    "`kit host prepare HOST --run`, or open the port of the finding by hand.",
    active=True,
)

DATA = _code(
    "KIT-DATA-001",
    "the data set is complete on all hosts",
    "A folder of the job is missing on a host, empty, or differs from the other hosts'.",
    "Copy the data from a host that has all of it.",
    active=True,
)
FOLDERS = _code(
    "KIT-DATA-002",
    "mounted folders exist",
    "The job mounts a folder that does not exist on the host.",
    "Make the folder on the host, or correct `mounts:` of the job.",
    quick=True,
)
ROOM = _code(
    "KIT-DATA-003",
    "data sets fit the disks and the caches",
    "The data sets that a host's jobs name, or on the storage host those of all jobs, are larger "
    "than its disk, than the free part of it, or than `data: {cache: …}`.",
    "Raise `cache`, use a larger disk, or stream the data set: `{name: NAME, stream: true}`.",
)
HEALTH = _code(
    "KIT-DATA-004",
    "the data services are healthy",
    "The data server or a data agent runs and does not answer its health check.",
    "Look at its log on the host: `docker logs CONTAINER`.",
)
