# Prints facts about this host, in sections. It needs no root and changes nothing.
# If a tool is missing, its section stays empty.
PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LC_ALL=C
export PATH LC_ALL
section() { printf '\n@@ %s\n' "$1"; }
# nvidia-smi can hang if a GPU has failed: then it is not asked again.
silent=
nvidia() {
    [ -z "$silent" ] && command -v nvidia-smi >/dev/null || return
    if ! command -v timeout >/dev/null; then nvidia-smi "$@"; return; fi
    timeout 30 nvidia-smi "$@"
    set -- $?
    [ "$1" != 124 ] || silent=yes
    return "$1"
}

# Nor may an engine that does not answer hold the probe.
client=$(command -v docker)
if [ "$client" ] && command -v timeout >/dev/null; then docker() { timeout 20 "$client" "$@"; }; fi

section host
uname -n
uname -sr
uname -m
echo "${SSH_CONNECTION:-}"
section os
cat /etc/os-release 2>/dev/null
section cpu
nproc 2>/dev/null
# ARM's kernels name no model there.
grep -m 1 '^model name' /proc/cpuinfo || lscpu 2>/dev/null | grep -m 1 '^Model name'
section memory
cat /proc/meminfo
section disks
df -PkT -x tmpfs -x devtmpfs -x squashfs -x overlay -x efivarfs 2>/dev/null
section cgroup
stat -fc %T /sys/fs/cgroup 2>/dev/null

section gpus
nvidia -L 2>&1
[ -z "$silent" ] || echo 'nvidia-smi does not answer within 30 s'
section gpu-query
nvidia --query-gpu=uuid,index,name,memory.total,driver_version --format=csv,noheader,nounits 2>/dev/null
# A separate query, as drivers before 510 reject the field.
section gpu-compute
nvidia --query-gpu=uuid,compute_cap --format=csv,noheader,nounits 2>/dev/null
# Nor does each driver know these: a field that is unknown spoils its query.
section gpu-bus
nvidia --query-gpu=uuid,pci.bus_id --format=csv,noheader,nounits 2>/dev/null
section gpu-mig
nvidia --query-gpu=uuid,mig.mode.current --format=csv,noheader,nounits 2>/dev/null
section pci
# What the bus has of NVIDIA: nvidia-smi may not list a GPU that is lost. A virtual function is a part
# of another device.
for device in /sys/bus/pci/devices/*; do
    vendor= kind=
    { read -r vendor <"$device/vendor" && read -r kind <"$device/class"; } 2>/dev/null
    [ "$vendor" = 0x10de ] && [ ! -e "$device/physfn" ] || continue
    driver=$(readlink "$device/driver")
    echo "${device##*/} $kind ${driver##*/}"
done
section gpu-ecc
nvidia --query-gpu=uuid,ecc.mode.current --format=csv,noheader,nounits 2>/dev/null
section tegra
# A Jetson: its model and its chip. Before JetPack 6 it has no nvidia-smi.
tr -d '\000' </proc/device-tree/model 2>/dev/null && echo
tr '\000' '\n' </proc/device-tree/compatible 2>/dev/null | grep '^nvidia,tegra'
section cuda
nvidia 2>/dev/null | grep -o 'CUDA Version: [0-9.]*'
section topology
nvidia topo -m 2>/dev/null

section docker
docker version --format '{{json .}}' 2>&1
section docker-info
info=$(docker info --format '{{json .}}' 2>/dev/null)
printf '%s\n' "$info"
section docker-program
# What answers to docker may not be the host's engine: its command and endpoint, and what others leave.
echo "$client"
docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null
ls -d /snap/bin/docker "/run/user/$(id -u)/docker.sock" 2>/dev/null
section toolkit
nvidia-ctk --version 2>/dev/null
command -v nvidia-container-runtime-hook
section groups
id -Gn

section interfaces
for path in /sys/class/net/*; do
    name=${path##*/}
    kind=virtual
    [ -e "$path/device" ] && kind=device
    echo "$name $kind $(cat "$path/operstate" 2>/dev/null) $(cat "$path/mtu" 2>/dev/null) $(cat "$path/speed" 2>/dev/null)"
done
section addresses
ip -o addr show 2>/dev/null
section routes
cat /proc/net/route 2>/dev/null
section rdma
for port in /sys/class/infiniband/*/ports/*; do
    [ -e "$port/state" ] || continue
    device=${port%/ports/*}
    net=$(ls "$device/device/net" 2>/dev/null | head -n 1)
    echo "${device##*/}|$net|$(cat "$port/link_layer")|$(cat "$port/state")|$(cat "$port/rate")"
done
# Last, as the commands above take time.
section clock
date +%s.%N
section end
