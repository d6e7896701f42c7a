"""The codes of findings on a host by itself: its system, its Docker, its GPUs. Pure."""

from __future__ import annotations

from kit.doctor.findings import Code

SSH = Code(
    "KIT-SSH-001",
    "SSH logs in",
    "The host is off, the name or the key is wrong, or no SSH server runs.",
    "Run the `ssh` command of the finding. Load the key into your agent.",
)
SSH_TIME = Code(
    "KIT-SSH-002",
    "SSH logs in quickly",
    "The SSH server looks up names that nobody answers (`UseDNS`), or a login script is slow. Each "
    "command of kit waits for it.",
    "Write `UseDNS no` into sshd_config. Look at `/etc/ssh/sshrc` and `~/.ssh/rc`.",
)
HOSTNAME = Code(
    "KIT-HOST-001",
    "host names are unique",
    "Two hosts have the same host name, as copies of one disk have. `docker node ls` and logs "
    "cannot tell them apart.",
    "`hostnamectl set-hostname NAME` on one of them, then restart Docker there.",
)
CLOCK = Code(
    "KIT-HOST-002",
    "clocks agree",
    "The clock of a host is wrong by more than a second. Certificates of the Swarm are refused, "
    "logs and leases are confused.",
    "`timedatectl set-ntp true`; look at `timedatectl timesync-status`.",
)
DISK = Code(
    "KIT-HOST-003",
    "disks have room",
    "The disk of Docker's images and volumes, or of a mounted folder, is almost full.",
    "`docker system df`, `docker image prune -a`; move data, or use a larger disk.",
)
DNS = Code(
    "KIT-HOST-004",
    "names resolve without a stall",
    "A name server of the host does not answer. Pulls, logins and the start of jobs wait for it.",
    "Look at `/etc/resolv.conf` and `resolvectl status`; take out the server that is silent.",
)
SWAP = Code(
    "KIT-HOST-005",
    "no swap is in use",
    "The host swaps. One host that swaps slows all ranks.",
    "`swapoff -a` as root, or see which process uses the memory.",
)
OVERCOMMIT = Code(
    "KIT-HOST-006",
    "memory may be overcommitted",
    "`vm.overcommit_memory` is 2: CUDA reserves far more address space than it uses, and fails.",
    "`sysctl -w vm.overcommit_memory=0` as root, and the same line in `/etc/sysctl.d`.",
)
CGROUP = Code(
    "KIT-HOST-007",
    "daemon-reload takes no GPU away",
    "Docker leaves device rules to systemd, and systemd does not know the GPUs: "
    "`systemctl daemon-reload` takes them from running containers.",
    "`nvidia-ctk system create-dev-char-symlinks --create-all` as root and by a udev rule, or "
    '`"exec-opts": ["native.cgroupdriver=cgroupfs"]` in daemon.json.',
)
MEMORY = Code(
    "KIT-HOST-008",
    "the planned /dev/shm fits the memory",
    "The job plans more shared memory than the host has memory.",
    "Write a smaller `limits: {shared_memory: …}` into the job.",
)
PROCESSOR = Code(
    "KIT-HOST-009",
    "processors are those of the inventory",
    "The host has another processor than the inventory says: the plan accepts images for it that "
    "end there with `exec format error`.",
    "`kit discover HOST`, or correct `architecture` of the host.",
    quick=True,
)
DOCKER = Code(
    "KIT-DOCKER-001",
    "docker works without sudo",
    "Docker is not installed or does not run, or the user is not in the group `docker`.",
    "`sudo usermod -aG docker $USER` and log in again, or `systemctl status docker`.",
    quick=True,
)
VERSION = Code(
    "KIT-DOCKER-002",
    "one version of Docker",
    "The hosts have different versions of Docker. Managers and workers of one Swarm should be of "
    "one release.",
    "Install the newest of the versions on all hosts.",
)
FAULTY = Code(
    "KIT-DOCKER-003",
    "no version with a known fault",
    "This version of Docker or of the NVIDIA toolkit has a fault that concerns kit.",
    "Install the version that the finding names.",
    quick=True,
)
IMAGE = Code(
    "KIT-DOCKER-004",
    "images are the same on all hosts",
    "A tag means another image on this host: ranks would run different code.",
    "`docker pull IMAGE` on the hosts, or pin all images with `kit image lock`.",
)
START = Code(
    "KIT-DOCKER-005",
    "containers start",
    "Docker cannot start a container of the job's image.",
    "Run the `docker run` command of the finding on the host.",
    active=True,
)
LIMITS = Code(
    "KIT-DOCKER-006",
    "tasks get their /dev/shm and open files",
    "A container gets less shared memory or fewer open files than the job asks for. DataLoader "
    "workers and NCCL fail.",
    "Raise `LimitNOFILE` of the service docker (`systemctl edit docker`), then restart it.",
    active=True,
)
ENGINE = Code(
    "KIT-DOCKER-007",
    "docker is the host's own Docker Engine",
    "Podman, nerdctl, rootless Docker, Docker Desktop, the snap of Docker or the engine of another "
    "machine answers to `docker`. None of them has Swarm, the host's network, its GPUs by "
    "NVIDIA's toolkit and its folders together.",
    "Remove it, or have `docker` use the host's engine again (`docker context use default`, no "
    "`DOCKER_HOST`); then `kit host prepare --run --install-docker HOST`.",
    quick=True,
)
PLATFORM = Code(
    "KIT-DOCKER-008",
    "images are for the host's processor",
    "The image on the host is for another processor: its containers end with `exec format error`, "
    "or run in a slow emulation.",
    "Build or name an image that has both platforms: `kit image build --platform "
    "linux/amd64,linux/arm64 --push`; then `docker pull` on the host.",
)
SMI = Code(
    "KIT-GPU-001",
    "nvidia-smi works",
    "The driver is not loaded, or does not fit its library after an upgrade.",
    "Reboot after an upgrade of the driver; otherwise install it again.",
    quick=True,
)
PRESENT = Code(
    "KIT-GPU-002",
    "planned GPUs exist",
    "A GPU of the inventory is missing: it fell off the bus, was taken out, or the UUID is wrong "
    "or cut short.",
    "Look at `nvidia-smi -L` and at XID 79 in the kernel's log; reboot, or `kit discover HOST`.",
    quick=True,
)
TOOLKIT = Code(
    "KIT-GPU-003",
    "the NVIDIA container toolkit is set up",
    "The toolkit is not installed, or Docker's daemon.json does not name its runtime.",
    "Install nvidia-container-toolkit and merge `hosts/HOST/daemon.json`; `kit host prepare` does "
    "both.",
    quick=True,
)
MODE = Code(
    "KIT-GPU-004",
    "the toolkit respects the pin of GPUs",
    "The toolkit's settings ignore `NVIDIA_VISIBLE_DEVICES`, by which kit pins GPUs: unprivileged "
    "containers may not use it, or devices are injected by CDI.",
    "In `/etc/nvidia-container-runtime/config.toml`: "
    '`accept-nvidia-visible-devices-envvar-when-unprivileged = true`, `mode = "auto"`.',
)
RESOURCE = Code(
    "KIT-GPU-005",
    "swarm-resource leaves kit's GPUs alone",
    "`swarm-resource` of the toolkit names `DOCKER_RESOURCE_KIT_GPU`: then Swarm's choice of a GPU "
    "beats the plan's.",
    "Take that line out of `/etc/nvidia-container-runtime/config.toml`.",
)
OFFERED = Code(
    "KIT-GPU-006",
    "Docker offers the GPUs to Swarm",
    "`node-generic-resources` of daemon.json does not list the GPUs of the inventory.",
    "Merge `hosts/HOST/daemon.json`, then restart Docker on the host.",
    quick=True,
)
SEES = Code(
    "KIT-GPU-007",
    "containers see the planned GPUs and no others",
    "A container that was given some GPUs sees others.",
    "Look at the toolkit's configuration and version on that host.",
    active=True,
)
VOID = Code(
    "KIT-GPU-008",
    "services without GPUs see none",
    "A container that needs no GPU sees some: its image asks for all, and nvidia is the default "
    "runtime.",
    "Start it with `NVIDIA_VISIBLE_DEVICES=void`.",
    active=True,
)
DRIVER = Code(
    "KIT-GPU-009",
    "the driver is new enough for the image's CUDA",
    "CUDA in the image needs a newer driver than the host has.",
    "Install a newer driver, or use an image with an older CUDA.",
    active=True,
)
CAPABILITY = Code(
    "KIT-GPU-010",
    "the image's torch runs on the GPUs",
    "The torch of the image was not built for the compute capability of a GPU.",
    "Use an image whose torch supports the oldest GPU: `kit image build --base`.",
    active=True,
)
XID = Code(
    "KIT-GPU-011",
    "no XID error since the start",
    "The driver has logged an error (XID) of a GPU.",
    "Look up the number in NVIDIA's XID catalogue. For 48, 62, 63, 64, 74, 79, 92, 94, 95, 119 and "
    "120: reset or replace the GPU.",
)
ECC = Code(
    "KIT-GPU-012",
    "no uncorrected memory error",
    "The memory of a GPU had errors that ECC could not correct.",
    "Reset the GPU (`nvidia-smi --gpu-reset -i UUID` as root). Replace it if they return.",
)
ROWS = Code(
    "KIT-GPU-013",
    "no row of memory waits for its replacement",
    "A GPU must be reset to replace a row of its memory, or has no spare rows left.",
    "Reset the GPU; after a failure replace it.",
)
THROTTLE = Code(
    "KIT-GPU-014",
    "no GPU is slowed down",
    "A GPU runs slower because of heat or of its power supply. One slow GPU slows all ranks.",
    "Look at fans, dust and power cables: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE`.",
)
POWER = Code(
    "KIT-GPU-015",
    "power limits are the default",
    "Somebody has lowered the power limit of a GPU.",
    "`nvidia-smi -i UUID -pl WATTS` as root, unless that was intended.",
)
PERSISTENCE = Code(
    "KIT-GPU-016",
    "persistence mode is on",
    "Without it each first use of a GPU takes seconds, and limits are lost.",
    "`nvidia-smi -pm 1` as root, or enable nvidia-persistenced.",
)
BUSY = Code(
    "KIT-GPU-017",
    "no other process uses the GPUs",
    "A process outside kit's containers uses a planned GPU: a job may run out of memory.",
    "End the process, or take the GPU out of the inventory (`use: none`).",
)
LISTED = Code(
    "KIT-GPU-018",
    "all GPUs of the host are listed",
    "The PCI bus has a GPU that nvidia-smi does not list, or nvidia-smi reports an error of a GPU: "
    "it is lost, or another driver has it (`vfio-pci` gives it to a virtual machine).",
    "Look at `lspci -nnk -d 10de:` and `sudo dmesg | grep NVRM`; reset or reboot. Look at power "
    "and seat of the card if it returns.",
)
LOST = Code(
    "KIT-GPU-019",
    "no GPU was lost since the start",
    "The kernel's log says that a GPU has fallen off the bus, or that the driver could not start "
    "it, without an XID.",
    "Switch the host off and on. Look at power and seat of the card if it returns.",
)
MIG = Code(
    "KIT-GPU-020",
    "GPUs with MIG on have instances",
    "MIG is on and the GPU has no instance, as after a reboot: nothing can run on it.",
    "`nvidia-smi -i UUID -mig 0` as root, or make instances (`nvidia-smi mig -i UUID -cgi PROFILE "
    "-C`), then `kit discover HOST`.",
)
FABRIC = Code(
    "KIT-GPU-021",
    "the fabric of NVSwitches, if any, is ready",
    "The GPUs are connected by NVSwitches, and the fabric manager does not run or has failed: CUDA "
    "fails with error 802, `system not yet initialized`.",
    "`systemctl status nvidia-fabricmanager`; its version must be that of the driver. Start it "
    "with `systemctl enable --now nvidia-fabricmanager`.",
)
SXID = Code(
    "KIT-GPU-022",
    "no SXid error since the start",
    "An NVSwitch has logged an error (SXid).",
    "Look up the number in NVIDIA's Fabric Manager User Guide. After a fatal one reset all GPUs "
    "and NVSwitches, or reboot.",
)
COMPUTES = Code(
    "KIT-GPU-023",
    "GPUs compute",
    "A container was given a GPU and cannot write and read its memory by CUDA, though nvidia-smi "
    "lists it.",
    "The error's name and number are those of CUDA's driver. 802: the fabric manager; 999 and 46: "
    "reset the GPU or reboot.",
    active=True,
)
