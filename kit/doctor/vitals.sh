# The sections of `kit doctor`, which the probe of kit/discover runs before it looks at the clock.
# It needs no root, changes nothing, and each command has a time limit.
# $images, $paths and $names are lists that kit prepends.
limited() {
    if command -v timeout >/dev/null; then timeout "$@"; else shift; "$@"; fi
}
docked() { docker "$@" 2>/dev/null; }

section kernel
cat /proc/sys/vm/overcommit_memory
cat /proc/uptime
section gpu-health
nvidia --query-gpu=uuid,persistence_mode,power.limit,power.default_limit,ecc.errors.uncorrected.volatile.total --format=csv,noheader,nounits 2>/dev/null
section gpu-throttle
# Drivers before 535 know only the old name.
nvidia --query-gpu=uuid,clocks_event_reasons.active --format=csv,noheader 2>/dev/null ||
    nvidia --query-gpu=uuid,clocks_throttle_reasons.active --format=csv,noheader 2>/dev/null
section gpu-rows
nvidia --query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure --format=csv,noheader 2>/dev/null
section gpu-fabric
# Drivers before 525 do not know it.
nvidia --query-gpu=uuid,fabric.state,fabric.status --format=csv,noheader,nounits 2>/dev/null
section gpu-processes
nvidia --query-compute-apps=gpu_uuid,pid,used_memory,process_name --format=csv,noheader,nounits 2>/dev/null |
    while IFS=, read -r uuid pid rest; do
        pid=${pid# }
        held=$(grep -om 1 'docker[-/][0-9a-f]\{64\}' "/proc/$pid/cgroup" 2>/dev/null)
        echo "$uuid,$pid,${held#docker?},$rest"
    done
section kernel-log
log=$(limited 5 dmesg 2>/dev/null || limited 5 journalctl -kbq --no-pager -o short-monotonic 2>/dev/null)
if [ -n "$log" ]; then
    echo readable
    # The newest of each kind: one error may fill the log.
    printf '%s\n' "$log" | grep 'Xid (' | awk '
        {match($0, /S?Xid \([^)]*\): [0-9]+, *[A-Za-z-]*/); kind = substr($0, RSTART, RLENGTH)}
        {line[kind] = $0; at[kind] = NR}
        END {for (kind in line) print at[kind], line[kind]}' | sort -n | cut -d ' ' -f 2- | tail -n 500
    # A GPU can be lost without an Xid. Some of these messages have several lines.
    printf '%s\n' "$log" | grep -E 'NVRM:.*(The NVIDIA GPU |\(PCI ID|fallen off the bus|installed in this system|GPU is lost|GPU_IS_LOST|RmInitAdapter failed|probe routine failed)' |
        grep -v 'Xid (' | tail -n 500
fi
section fabric-manager
systemctl is-active nvidia-fabricmanager 2>/dev/null
grep -qs '^nv-fabricman' /proc/[0-9]*/comm && echo running
section toolkit-config
grep -hE '^[[:space:]]*(mode|swarm-resource|accept-nvidia-visible-devices-envvar-when-unprivileged)[[:space:]]*=' /etc/nvidia-container-runtime/config.toml 2>/dev/null
section char-devices
ls -d /dev/char/195:* 2>/dev/null
section listening
# The ports of all listening sockets, in hexadecimal; `ss` may be missing.
awk '$4 == "0A" {n = split($2, part, ":"); print part[n]}' /proc/net/tcp /proc/net/tcp6 2>/dev/null | sort -u
section room
# Each call of docker takes some hundredths of a second of the host: what is known is not asked again.
root=$(printf '%s' "$info" | sed -n 's/.*"DockerRootDir":"\([^"]*\)".*/\1/p')
# Not every user may look into Docker's folder; its own file system is known then.
for path in "$root" "$root/volumes" $paths; do
    [ -e "$path" ] && df -Pk "$path" 2>/dev/null | awk -v path="$path" 'NR == 2 {print $2, $4, path}'
done
section paths
for path in $paths; do
    if [ -e "$path" ]; then echo "there $path"; else echo "missing $path"; fi
done
section names
# A stall of 5 s is one that a resolver makes of a silent server (resolv.conf(5)).
(
    for name in $names; do
        before=$(date +%s%N)
        limited 6 getent hosts "$name" >/dev/null
        echo "$name $((($(date +%s%N) - before) / 1000000))"
    done
) 2>/dev/null
if [ -n "$root" ]; then
    section images
    for image in $images; do
        docked image inspect --format "$image|{{.Id}}|{{json .RepoDigests}}|{{.Architecture}}" "$image"
    done
    section containers
    running=$(docked ps -q)
    # The environment may hold secrets: only the one variable leaves the host.
    [ -n "$running" ] && docked inspect --format '{{.Id}}|{{.Name}}|{{.Config.Image}}|{{.HostConfig.Runtime}}|{{index .Config.Labels "com.docker.stack.namespace"}}|{{index .Config.Labels "com.docker.compose.project"}}|{{json .HostConfig.DeviceRequests}}|{{range .Config.Env}}{{if eq (printf "%.23s" .) "NVIDIA_VISIBLE_DEVICES="}}{{.}}{{end}}{{end}}' $running
    section published
    # With `.Id`, docker would read raw JSON, where a container without a health check has no Health.
    [ -n "$running" ] && docked inspect --format '{{.ID}}|{{range $name, $_ := .NetworkSettings.Networks}}{{$name}} {{end}}|{{range $port, $places := .NetworkSettings.Ports}}{{range $places}}{{.HostPort}} {{end}}{{end}}|{{with .State.Health}}{{.Status}}{{end}}' $running
    section nodes
    case $info in *'"ControlAvailable":true'*)
        nodes=$(docker node ls -q 2>&1) || { echo "error: $nodes"; nodes=; }
        [ -n "$nodes" ] && docked node inspect --format '{{.ID}}|{{.Description.Hostname}}|{{.Status.State}}|{{.Status.Message}}|{{.Status.Addr}}|{{.Spec.Availability}}|{{.Spec.Role}}|{{if .ManagerStatus}}{{.ManagerStatus.Reachability}}{{end}}|{{json .Spec.Labels}}' $nodes
        ;;
    esac
    section volumes
    docked volume ls -q
    section networks
    docked network ls --filter driver=overlay --format '{{.Name}}'
    section certificate
    # Readable for root only. Swarm renews it after half of its time.
    cat "$root/swarm/certificates/swarm-node.crt" 2>/dev/null
fi
