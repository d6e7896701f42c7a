# ruff: noqa: E501 - a message is one line
"""Mistakes that people make in an inventory or a job, and the answers: tests/test_malformed.py."""

NINES = "9" * 400
EFFS = "F" * 5_000
DIGEST = f"sha256:{'a' * 64}"
BRACKETS = "[" * 100_000
DASHES = "- " * 100_000
LAUGHS = "a0: &a0 [lol]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
)

# fmt: off
# What is replaced in the inventory by what, and what is wrong in inventory.yaml.
INVENTORIES: list[tuple[str, str, str, list[str]]] = [
    ('a card and its instance', '{uuid: GPU-b}', '{uuid: MIG-GPU-c/1/0}', [
        '12: hosts.pc2.gpus[0].uuid: MIG-GPU-c/1/0 is a part of GPU-c (line 13); list the card or its instances',
    ]),
    ('a time zone without its continent', 'cluster: lab', 'cluster: lab\nqueue: {zone: Berlin}', [
        '2: queue.zone: there is no time zone \'Berlin\' here; write a name of the tz database, for example "Europe/Berlin" or "UTC"',
    ]),
    ('a share of nothing', 'cluster: lab', 'cluster: lab\nqueue: {people: {anna: {share: 0}}}', [
        '2: queue.people.anna.share: 0 is out of range; write a number of more than 0',
    ]),
    ('lent, and never', '    roles: [manager]', '    roles: [manager]\n    lend: {}', [
        '7: hosts.pc1.lend: is never lent; write `weekdays:` or `weekends:`, or leave `lend:` out',
    ]),
    ('lent at no time', '    roles: [manager]', '    roles: [manager]\n    lend: {weekdays: 19-8, weekends: "08:00-08:00"}', [
        '7: hosts.pc1.lend.weekdays: \'19-8\' are not hours; write for example "19:00-08:00", in quotes, or all',
        '7: hosts.pc1.lend.weekends: 08:00-08:00 begins when it ends; write for example "19:00-08:00", in quotes, or all',
    ]),
    ('lent by digits of another script', '    roles: [manager]', '    roles: [manager]\n    lend: {weekdays: "\u0661\u0669:00-08:00"}', [
        '7: hosts.pc1.lend.weekdays: \'\u0661\u0669:00-08:00\' are not hours; write for example "19:00-08:00", in quotes, or all',
    ]),
    ('heartbeat without a unit', 'cluster: lab', 'cluster: lab\nswarm: {heartbeat: 2}', [
        '2: swarm.heartbeat: 2 has no unit; use s, m or h, for example 2s',
    ]),
    ('heartbeat of a dead man', 'cluster: lab', 'cluster: lab\nswarm: {heartbeat: 5m}', [
        '2: swarm.heartbeat: 300 is out of range; write a number of at most 60',
    ]),
    ('an address in brackets', '192.168.8.114', '"[fd00::2]"', [
        "10: hosts.pc2.address: '[fd00::2]' has brackets; write fd00::2",
    ]),
    ('cluster is missing', 'cluster: lab\n', '', [
        '1: cluster: is missing; add for example `cluster: lab`',
    ]),
    ('cluster is null', 'cluster: lab', 'cluster:', [
        '1: cluster: nothing is not a DNS label (at most 63 lower-case letters, digits, inner hyphens); write for example gpu01',
    ]),
    ('cluster is a list', 'cluster: lab', 'cluster: [lab]', [
        '1: cluster: ["lab"] is not a DNS label (at most 63 lower-case letters, digits, inner hyphens); write for example gpu01',
    ]),
    ('cluster is a number', 'cluster: lab', 'cluster: 12', [
        '1: cluster: 12 is a number, not a text; write "12", in quotes',
    ]),
    ('cluster is no DNS label', 'cluster: lab', 'cluster: My_Lab', [
        "1: cluster: 'My_Lab' is not a DNS label (at most 63 lower-case letters, digits, inner hyphens); write for example my-lab",
    ]),
    ('unknown key near a known one', 'cluster: lab', 'clustr: lab', [
        '1: cluster: is missing; add for example `cluster: lab`',
        '1: clustr: is not a known key; did you mean cluster?',
    ]),
    ('engine is unknown', 'engine: swarm', 'engine: nomad', [
        "2: engine: 'nomad' is not known; use one of local, compose, swarm, kubernetes",
    ]),
    ('engine is near a known one', 'engine: swarm', 'engine: swam', [
        "2: engine: 'swam' is not known; did you mean swarm?",
    ]),
    ('engine is null', 'engine: swarm', 'engine:', [
        '2: engine: nothing is not known; use one of local, compose, swarm, kubernetes',
    ]),
    ('key twice', 'engine: swarm', 'engine: swarm\nengine: local', [
        '3: the key engine is already given in line 2; keep one of the two',
    ]),
    ('network is null', 'network: {speed: 1Gbit}', 'network:', [
        '14: network: nothing is not a mapping; write for example `network: {"speed": "1Gbit"}`, or leave it out',
    ]),
    ('network is a list', 'network: {speed: 1Gbit}', 'network: [1Gbit]', [
        '14: network: ["1Gbit"] is not a mapping; write for example `network: {"speed": "1Gbit"}`',
    ]),
    ('speed in bytes', '{speed: 1Gbit}', '{speed: 125MB/s}', [
        "14: network.speed: '125MB/s' has the unit MB/s, but links are measured in Mbit or Gbit (per second); write for example 1Gbit",
    ]),
    ('speed without unit', '{speed: 1Gbit}', '{speed: 1000}', [
        '14: network.speed: 1000 has no unit; write 1000Mbit or 1000Gbit',
    ]),
    ('speed of nothing', '{speed: 1Gbit}', '{speed: 0Gbit}', [
        "14: network.speed: '0Gbit' is not a link speed; write for example 1Gbit",
    ]),
    ('speed below a bit', '{speed: 1Gbit}', '{speed: 0.0000000001Gbit}', [
        "14: network.speed: '0.0000000001Gbit' is not a link speed; write for example 1Gbit",
    ]),
    ('speed is null', '{speed: 1Gbit}', '{speed: }', [
        '14: network.speed: nothing is not a link speed; write for example 1Gbit',
    ]),
    ('driver is unknown', '{speed: 1Gbit}', '{driver: macvlan}', [
        "14: network.driver: 'macvlan' is not known; use one of overlay, host",
    ]),
    ('mtu is too small', '{speed: 1Gbit}', '{mtu: 100}', [
        '14: network.mtu: 100 is out of range; write a number of at least 576',
    ]),
    ('mtu is too large', '{speed: 1Gbit}', '{mtu: 70000}', [
        '14: network.mtu: 70000 is out of range; write a number of at most 65535',
    ]),
    ('mtu is a text', '{speed: 1Gbit}', '{mtu: "1500"}', [
        "14: network.mtu: '1500' is not a whole number; write for example `mtu: 1500`",
    ]),
    ('mtu is huge', '{speed: 1Gbit}', '{mtu: 0x' + EFFS + '}', [
        '14: 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF is too large; write at most 9223372036854775807',
    ]),
    ('infiniband in an overlay', '{speed: 1Gbit}', '{infiniband: true}', [
        '14: network.infiniband: InfiniBand does not reach into an overlay network; write `driver: host`',
    ]),
    ('encryption without an overlay', '{speed: 1Gbit}', '{driver: host, encrypted: true}', [
        '14: network.encrypted: only the overlay of a Swarm can be encrypted; leave it out, and use a network that you trust, or a VPN between the hosts',
    ]),
    ('infiniband is YAML 1.1', '{speed: 1Gbit}', '{infiniband: yes}', [
        "14: network.infiniband: 'yes' is not true or false; write for example `infiniband: false`",
    ]),
    ('interface in an overlay', '{speed: 1Gbit}', '{interface: eth0}', [
        '14: network.interface: an interface of the host does not exist inside an overlay network; leave it out (the launcher finds the right one), or write `driver: host`',
    ]),
    ('interface is a command', '{speed: 1Gbit}', '{driver: host, interface: eth0; reboot}', [
        "14: network.interface: 'eth0; reboot' is not the name of one interface; write for example eth0 (see `ip link`)",
    ]),
    ('subnet with host bits', '{speed: 1Gbit}', '{subnet: 10.0.0.1/8}', [
        "14: network.subnet: '10.0.0.1/8' is not an IPv4 network: it has host bits set; write for example 10.200.0.0/16",
    ]),
    ('subnet is a number', '{speed: 1Gbit}', '{subnet: 10}', [
        '14: network.subnet: 10 is not an IPv4 network; write for example 10.200.0.0/16',
    ]),
    ('subnet of the machines', '{speed: 1Gbit}', '{subnet: 192.168.8.0/24}', [
        '14: network.subnet: 192.168.8.0/24 contains 192.168.8.151, the address of pc1; choose a range that no machine uses',
    ]),
    ('subnet is too small', '{speed: 1Gbit}', '{subnet: 10.9.9.0/29}', [
        "14: network.subnet: 10.9.9.0/29 has 8 addresses for 2 hosts; make it larger: at least 22, one for each task and each host's end",
    ]),
    ('no variables of NCCL', '{speed: 1Gbit}', '{nccl: {IB_HCA: mlx5_0, DEBUG: INFO}}', [
        '14: network.nccl.IB_HCA: is not a variable of NCCL; write NCCL_IB_HCA, or move it to environment',
        '14: network.nccl.DEBUG: is not a variable of NCCL; write NCCL_DEBUG, or move it to environment',
    ]),
    ('variable is a boolean', '{speed: 1Gbit}', '{nccl: {NCCL_IB_DISABLE: true}}', [
        '14: network.nccl.NCCL_IB_DISABLE: true is a YAML boolean; write "true", or "1" or "0", in quotes',
    ]),
    ('monitoring with a wrong time', 'network: {speed: 1Gbit}', 'monitoring: {retention: 30 days}', [
        "14: monitoring.retention: '30 days' is not a time to keep metrics; write for example 30d",
    ]),
    ('logs kept for hours', 'network: {speed: 1Gbit}', 'monitoring: {logs: 12h}', [
        "14: monitoring.logs: '12h' is not a number of days; write for example 30d",
    ]),
    ('logs kept for a number', 'network: {speed: 1Gbit}', 'monitoring: {logs: 30}', [
        '14: monitoring.logs: is not a number of days; write `logs: 30d`, or `{keep: 30d, size: 10GiB}`',
    ]),
    ('logs with wrong bounds', 'network: {speed: 1Gbit}', 'monitoring: {logs: {keep: 3, size: 0, max: 1GiB}}', [
        '14: monitoring.logs.keep: 3 is not a number of days; write for example 30d',
        '14: monitoring.logs.size: 0 is too small, because Docker itself keeps 30 MB of each container; write at least 100MiB, for example 10GiB',
        '14: monitoring.logs.max: is not a known key; use one of keep, size',
    ]),
    ('logs with a size alone', 'network: {speed: 1Gbit}', 'monitoring: {logs: {size: 10GB}}', [
        '14: monitoring.logs.keep: is missing; add for example `keep: 30d`',
        "14: monitoring.logs.size: '10GB' has the unit GB, which is not exact; write 10GiB",
    ]),
    ('monitoring on an unknown host', 'network: {speed: 1Gbit}', 'monitoring: {host: pc3}', [
        '14: monitoring.host: pc3 is not in the inventory; did you mean pc2?',
    ]),
    ('an Alertmanager without a port', 'network: {speed: 1Gbit}', 'monitoring: {alertmanager: alerts.lab}', [
        '14: monitoring.alertmanager: alerts.lab has no usable port; write alerts.lab:9093',
    ]),
    ('an Alertmanager by its address in a browser', 'network: {speed: 1Gbit}', 'monitoring: {alertmanager: "http://alerts:9093/"}', [
        "14: monitoring.alertmanager: 'http://alerts:9093/' is not a host and a port; write alerts:9093",
    ]),
    ('a list of Alertmanagers', 'network: {speed: 1Gbit}', 'monitoring: {alertmanager: [alerts:9093]}', [
        '14: monitoring.alertmanager: ["alerts:9093"] is not a host and a port; write alerts.lab:9093',
    ]),
    ('a name that YAML takes for a number', 'cluster: lab', 'cluster: 1e3', [
        '1: cluster: this is the number 1000.0, not a text; write it in quotes',
    ]),
    ('registry is a text', 'network: {speed: 1Gbit}', 'registry: registry.lab:5000', [
        '14: registry: \'registry.lab:5000\' is not a mapping; write for example `registry: {"address": "registry.lab:5000"}`',
    ]),
    ('registry without address', 'network: {speed: 1Gbit}', 'registry: {host: pc1}', [
        '14: registry.address: is missing; add for example `address: registry.lab:5000`',
    ]),
    ('registry with a scheme', 'network: {speed: 1Gbit}', 'registry: {address: "http://registry.lab:5000/v2/"}', [
        "14: registry.address: 'http://registry.lab:5000/v2/' is not the address of a registry; write registry.lab:5000",
    ]),
    ('registry with a path', 'network: {speed: 1Gbit}', 'registry: {address: registry.lab:5000/trainer}', [
        "14: registry.address: 'registry.lab:5000/trainer' is not the address of a registry; write registry.lab:5000",
    ]),
    ('registry is a number', 'network: {speed: 1Gbit}', 'registry: {address: 5000}', [
        '14: registry.address: 5000 is not the address of a registry; write for example registry.lab:5000',
    ]),
    ('registry at no port', 'network: {speed: 1Gbit}', 'registry: {address: registry.lab:70000}', [
        "14: registry.address: 'registry.lab:70000' has no usable port; write for example registry.lab:5000",
    ]),
    ('registry that Docker takes for an account', 'network: {speed: 1Gbit}', 'registry: {address: pc1}', [
        "14: registry.address: Docker takes 'pc1' for an account on Docker Hub, as it has no dot and no port; write for example pc1:5000",
    ]),
    ('registry of each host alone', 'network: {speed: 1Gbit}', 'registry: {address: localhost:5000}', [
        '14: registry.address: localhost:5000 is a different machine on each host; write a name that all hosts know, or an address',
    ]),
    ('registry on an unknown host', 'network: {speed: 1Gbit}', 'registry: {address: registry.lab:5000, host: pc3}', [
        '14: registry.host: pc3 is not in the inventory; did you mean pc2?',
    ]),
    ('registry to be served without a port', 'network: {speed: 1Gbit}', 'registry: {address: registry.lab, host: pc1}', [
        '14: registry.address: registry.lab has no port, which kit needs to serve the registry; write registry.lab:5000',
    ]),
    ("registry at another host's address", 'network: {speed: 1Gbit}', 'registry: {address: 192.168.8.114:5000, host: pc1}', [
        '14: registry.address: 192.168.8.114 is pc2, but the registry is to be served on pc1; write `host: pc2`, or the address of pc1',
    ]),
    ('registry with an image for nothing', 'network: {speed: 1Gbit}', 'registry: {address: registry.lab:5000, image: registry:3}', [
        '14: registry.image: has no effect, because kit does not serve the registry; add `host: …`, or leave it out',
    ]),
    ('registry out of itself', 'network: {speed: 1Gbit}', 'registry: {address: registry.lab:5000, host: pc1, image: registry.lab:5000/registry:2}', [
        '14: registry.image: registry.lab:5000/registry:2 is stored in the registry that it should serve; name an image from elsewhere, as registry:2',
    ]),
    ('registry is misspelt', 'network: {speed: 1Gbit}', 'registry: {adress: registry.lab:5000}', [
        '14: registry.address: is missing; add for example `address: registry.lab:5000`',
        '14: registry.adress: is not a known key; did you mean address?',
    ]),
    ('host is no DNS label', 'pc2:', 'pc_2:', [
        "9: hosts.pc_2: 'pc_2' is not a DNS label (at most 63 lower-case letters, digits, inner hyphens); write for example pc-2",
    ]),
    ('host in capitals', 'pc2:', 'PC2:', [
        "9: hosts.PC2: 'PC2' is not a DNS label (at most 63 lower-case letters, digits, inner hyphens); write for example pc2",
    ]),
    ('host twice', 'pc2:', 'pc1:', [
        '9: the key pc1 is already given in line 4; keep one of the two',
    ]),
    ('host with an empty name', 'pc2:', "'':", [
        "9: hosts.'': '' is not a DNS label (at most 63 lower-case letters, digits, inner hyphens); write for example gpu01",
    ]),
    ("host named as a union's tag", '  pc2:\n    address: 192.168.8.114', '  <list>:\n    adress: 192.168.8.114', [
        '9: hosts.<list>.address: is missing; add for example `address: 192.168.8.151`',
        '10: hosts.<list>.adress: is not a known key; did you mean address?',
    ]),
    ('host named as pydantic names keys', 'pc2:', "'[key]':", [
        "9: hosts.[key]: '[key]' is not a range; write one bracket, as in gpu[001-512]",
    ]),
    ('host named by a list', '  pc2:', '  ? [pc2]\n  :', [
        '9: a key must be a plain word; write `key: value`',
    ]),
    ('host with a line feed', 'pc2:', '"pc\\n2":', [
        "9: hosts.'pc\\n2': 'pc\\n2' is not a DNS label (at most 63 lower-case letters, digits, inner hyphens); write for example pc-2",
    ]),
    ('range of hosts with UUIDs', 'pc2:', 'gpu[01-03]:', [
        '11: hosts.gpu[01-03].gpus: a UUID belongs to one GPU, but gpu[01-03] is 3 hosts; write `gpus: 2`, or describe the hosts one by one',
    ]),
    ('range runs backwards', 'pc2:', 'gpu[3-1]:', [
        "9: hosts.gpu[3-1]: 'gpu[3-1]' runs backwards; put the smaller number first",
    ]),
    ('range is too long', 'pc2:', 'gpu[1-999999999]:', [
        "9: hosts.gpu[1-999999999]: 'gpu[1-999999999]' stands for 999999999 hosts; at most 100000 are taken",
    ]),
    ('range of one number', 'pc2:', 'gpu[1]:', [
        "9: hosts.gpu[1]: 'gpu[1]' is not a range; write one bracket, as in gpu[001-512]",
    ]),
    ('two brackets', 'pc2:', 'rack[1-2]n[1-2]:', [
        "9: hosts.rack[1-2]n[1-2]: 'rack[1-2]n[1-2]' is not a range; write one bracket, as in gpu[001-512]",
    ]),
    ('range contains another host', '  pc2:\n    address: 192.168.8.114\n    gpus:\n      - {uuid: GPU-b}\n      - {uuid: GPU-c, use: inference}\n', '  pc[1-2]: {address: "10.0.0.[1-2]", gpus: 1}\n', [
        '9: hosts.pc[1-2]: pc1 is already described by pc1 (line 4); leave it out of one of the two',
    ]),
    ('range without range of addresses', '  pc2:\n    address: 192.168.8.114\n    gpus:\n      - {uuid: GPU-b}\n      - {uuid: GPU-c, use: inference}\n', '  gpu[1-2]: {address: 10.0.0.1, gpus: 1}\n', [
        "9: hosts.gpu[1-2].address: '10.0.0.1' is one address for 2 hosts; write a range, as in 10.0.0.[1-64] or 10.1.0.1-10.1.2.0",
    ]),
    ('range with too few addresses', '  pc2:\n    address: 192.168.8.114\n    gpus:\n      - {uuid: GPU-b}\n      - {uuid: GPU-c, use: inference}\n', '  gpu[1-3]: {address: 10.0.0.1-10.0.0.2, gpus: 1}\n', [
        "9: hosts.gpu[1-3].address: '10.0.0.1-10.0.0.2' holds 2 addresses for 3 hosts; make the two ranges equally long",
    ]),
    ('range leaves its network', '  pc2:\n    address: 192.168.8.114\n    gpus:\n      - {uuid: GPU-b}\n      - {uuid: GPU-c, use: inference}\n', '  gpu[1-3]: {address: "10.0.0.[254-256]", gpus: 1}\n', [
        "9: hosts.gpu[1-3].address: '10.0.0.256' is not an IPv4 address; write four numbers from 0 to 255",
    ]),
    ('range without range of logins', '  pc2:\n    address: 192.168.8.114\n    gpus:\n      - {uuid: GPU-b}\n      - {uuid: GPU-c, use: inference}\n', '  gpu[1-2]: {address: "10.0.0.[1-2]", ssh: ops@pc, gpus: 1}\n', [
        "9: hosts.gpu[1-2].ssh: 'ops@pc' is one address for 2 hosts; write a range, as in 10.0.0.[1-64] or 10.1.0.1-10.1.2.0",
    ]),
    ('address is missing', '    address: 192.168.8.114\n', '', [
        '9: hosts.pc2.address: is missing; add for example `address: 192.168.8.151`',
    ]),
    ('address of one host alone', 'address: 192.168.8.114', 'address: 127.0.0.1', [
        '10: hosts.pc2.address: 127.0.0.1 is not an address at which other hosts reach pc2; write its address in the network that they share',
    ]),
    ('UUID twice, in other letters', 'uuid: GPU-c', 'uuid: GPU-A', [
        '13: hosts.pc2.gpus[1].uuid: GPU-A is already listed on pc1 (line 8); give the UUID that `nvidia-smi -L` prints on pc2',
    ]),
    ('address is there already', 'address: 192.168.8.114', 'address: 192.168.8.151', [
        '10: hosts.pc2.address: 192.168.8.151 is already the address of pc1 (line 5); give each host its own address',
    ]),
    ('address of three numbers', 'address: 192.168.8.114', 'address: 192.168.8', [
        "10: hosts.pc2.address: '192.168.8' is not an IPv4 address; write four numbers from 0 to 255",
    ]),
    ('address is a number', 'address: 192.168.8.114', 'address: 192.168', [
        '10: hosts.pc2.address: 192.168 is not a text; write for example `address: 192.168.8.151`',
    ]),
    ('address above 255', 'address: 192.168.8.114', 'address: 192.168.8.256', [
        "10: hosts.pc2.address: '192.168.8.256' is not an IPv4 address; write four numbers from 0 to 255",
    ]),
    ('address with a port', 'address: 192.168.8.114', 'address: 192.168.8.114:22', [
        "10: hosts.pc2.address: '192.168.8.114:22' is not an address; leave the port out: 192.168.8.151",
    ]),
    ('address with a user', 'address: 192.168.8.114', 'address: user@pc2', [
        "10: hosts.pc2.address: 'user@pc2' is neither an IP address nor a host name; write for example 192.168.8.151",
    ]),
    ('address is null', 'address: 192.168.8.114', 'address:', [
        '10: hosts.pc2.address: nothing is not a text; write for example `address: 192.168.8.151`',
    ]),
    ('address is misspelt', 'address: 192.168.8.114', 'adress: 192.168.8.114', [
        '9: hosts.pc2.address: is missing; add for example `address: 192.168.8.151`',
        '10: hosts.pc2.adress: is not a known key; did you mean address?',
    ]),
    ('login without user', 'address: 192.168.8.114', 'address: 192.168.8.114\n    ssh: "@pc2"', [
        "11: hosts.pc2.ssh: '@pc2' is not a login; write for example user1@pc1",
    ]),
    ('login is a number', 'address: 192.168.8.114', 'address: 192.168.8.114\n    ssh: 4090', [
        '11: hosts.pc2.ssh: 4090 is a number, not a text; write "4090", in quotes',
    ]),
    ('registry without brackets', '{speed: 1Gbit}', '{speed: 1Gbit}\nregistry: {address: "fd00::1:5000"}', [
        "15: registry.address: 'fd00::1:5000' is not the address of a registry; write \"[fd00::1]:5000\"",
    ]),
    ('registry on an IPv6 address without a port', '{speed: 1Gbit}', '{speed: 1Gbit}\nregistry: {address: "[fd00::1]", host: pc1}', [
        '15: registry.address: [fd00::1] has no port, which kit needs to serve the registry; write "[fd00::1]:5000"',
    ]),
    ('login with a bad port', 'address: 192.168.8.114', 'address: 192.168.8.114\n    ssh: ops@pc2:ssh', [
        "11: hosts.pc2.ssh: 'ops@pc2:ssh' has no usable port; write for example user1@pc1:2222",
    ]),
    ('login is an option', 'address: 192.168.8.114', 'address: 192.168.8.114\n    ssh: -oProxyCommand=x', [
        "11: hosts.pc2.ssh: '-oProxyCommand=x' is not a login; write for example user1@pc1",
    ]),
    ('no manager', 'roles: [manager]', 'roles: [storage]', [
        '3: hosts: no host is a manager; give one host the role: `pc1: {roles: [manager], …}`',
    ]),
    ('roles are a text', 'roles: [manager]', 'roles: manager', [
        '6: hosts.pc1.roles: \'manager\' is not a list; write for example `roles: ["manager"]`',
    ]),
    ('role is misspelt', 'roles: [manager]', 'roles: [manger]', [
        "6: hosts.pc1.roles[0]: 'manger' is not known; did you mean manager?",
    ]),
    ('role is null', 'roles: [manager]', 'roles: [manager, null]', [
        '6: hosts.pc1.roles[1]: nothing is not known; use one of manager, storage',
    ]),
    ('memory with a decimal unit', 'memory: 24GiB', 'memory: 24GB', [
        "8: hosts.pc1.gpus[0].memory: '24GB' has the unit GB, which is not exact; write 24GiB",
    ]),
    ('memory without unit', 'memory: 24GiB', 'memory: 24', [
        '8: hosts.pc1.gpus[0].memory: 24 has no unit; write 24MiB or 24GiB',
    ]),
    ('memory in bytes', 'memory: 24GiB', 'memory: 25769803776', [
        '8: hosts.pc1.gpus[0].memory: 25769803776 has no unit; write 24GiB',
    ]),
    ('memory is negative', 'memory: 24GiB', 'memory: -1GiB', [
        "8: hosts.pc1.gpus[0].memory: '-1GiB' is not a size; write for example 24GiB",
    ]),
    ('memory is nothing', 'memory: 24GiB', 'memory: 0GiB', [
        "8: hosts.pc1.gpus[0].memory: '0GiB' is not a size; write for example 24GiB",
    ]),
    ('memory is endless', 'memory: 24GiB', 'memory: ' + NINES + 'GiB', [
        "8: hosts.pc1.gpus[0].memory: '9999999999999999999999999999999999999999999999999999999999… is not a size; write for example 24GiB",
    ]),
    ('memory is a list', 'memory: 24GiB', 'memory: [24GiB]', [
        '8: hosts.pc1.gpus[0].memory: ["24GiB"] is not a size; write for example 24GiB',
    ]),
    ('UUID of another host', 'uuid: GPU-b', 'uuid: GPU-a', [
        '12: hosts.pc2.gpus[0].uuid: GPU-a is already listed on pc1 (line 8); give the UUID that `nvidia-smi -L` prints on pc2',
    ]),
    ('UUID twice on a host', 'uuid: GPU-c', 'uuid: GPU-b', [
        '13: hosts.pc2.gpus[1].uuid: GPU-b is already listed (line 12); give the UUID that `nvidia-smi -L` prints on pc2',
    ]),
    ('UUID is an index', 'uuid: GPU-b', 'uuid: 0', [
        "12: hosts.pc2.gpus[0].uuid: 0 is not a GPU's UUID; copy what `nvidia-smi -L` prints: GPU-… or MIG-…",
    ]),
    ('UUID is missing', 'uuid: GPU-b', 'model: TITAN RTX', [
        '12: hosts.pc2.gpus[0].uuid: is missing; add for example `uuid: GPU-5f3a…`, or `index: 0`',
    ]),
    ('UUID and index', 'uuid: GPU-b', 'uuid: GPU-b, index: 0', [
        '12: hosts.pc2.gpus[0].index: the GPU has a UUID already; keep one of the two',
    ]),
    ('UUIDs and indexes', 'uuid: GPU-b', 'index: 0', [
        '13: hosts.pc2.gpus[1]: some GPUs of the host have an index, some a UUID; write one or the other for all',
    ]),
    ('index is a text', 'uuid: GPU-b', 'index: "0"', [
        "12: hosts.pc2.gpus[0].index: '0' is not a whole number; write for example `index: 0`",
    ]),
    ('index is negative', 'uuid: GPU-b', 'index: -1', [
        '12: hosts.pc2.gpus[0].index: -1 is out of range; write a number of at least 0',
    ]),
    ('index twice', '    gpus:\n      - {uuid: GPU-b}\n      - {uuid: GPU-c, use: inference}\n', '    gpus:\n      - {index: 0}\n      - {index: 1}\n      - {index: 0}\n', [
        '14: hosts.pc2.gpus[2].index: 0 is already listed (line 12); give each GPU the index that `nvidia-smi -L` prints',
    ]),
    ('index is left out', '    gpus:\n      - {uuid: GPU-b}\n      - {uuid: GPU-c, use: inference}\n', '    gpus: [{index: 2}, {index: 0}]\n', [
        '11: hosts.pc2.gpus: GPU 1 is not listed, GPU 2 is; list every GPU that the host has: `{index: 1, use: none}` excludes it',
    ]),
    ('UUID beside its beginning', 'uuid: GPU-b}\n      - {uuid: GPU-c', 'uuid: GPU-7af7a99b-2d3c-0d1c-6fc2-4d5b0e1a2c3d}\n      - {uuid: GPU-7AF7A99B', [
        '13: hosts.pc2.gpus[1].uuid: GPU-7AF7A99B is the beginning of GPU-7af7a99b-2d3c-0d1c-6fc2-4d5b0e1a2c3d (line 12); keep one of the two, with the UUID that `nvidia-smi -L` prints',
    ]),
    ('UUID is cut short', 'uuid: GPU-b', 'uuid: GPU-5f3a…', [
        "12: hosts.pc2.gpus[0].uuid: 'GPU-5f3a…' is not a GPU's UUID; copy what `nvidia-smi -L` prints: GPU-… or MIG-…",
    ]),
    ('GPU is a text', '- {uuid: GPU-b}', '- GPU-b', [
        '12: hosts.pc2.gpus[0]: \'GPU-b\' is not a mapping; write for example `gpus: [{"uuid": "GPU-5f3a…", "memory": "24GiB"}]`',
    ]),
    ('GPU is null', '- {uuid: GPU-b}', '-', [
        '12: hosts.pc2.gpus[0]: nothing is not a mapping; write for example `gpus: [{"uuid": "GPU-5f3a…", "memory": "24GiB"}]`',
    ]),
    ('model is a number', 'uuid: GPU-b', 'uuid: GPU-b, model: 3090', [
        '12: hosts.pc2.gpus[0].model: 3090 is not a text; write for example `model: TITAN RTX`',
    ]),
    ('use is misspelt', 'use: inference', 'use: infrence', [
        "13: hosts.pc2.gpus[1].use: 'infrence' is not known; did you mean inference?",
    ]),
    ('use is a list', 'use: inference', 'use: []', [
        '13: hosts.pc2.gpus[1].use: [] is not known; use one of training, inference, spare, none',
    ]),
    ('GPUs are negative', '    gpus:\n      - {uuid: GPU-b}\n      - {uuid: GPU-c, use: inference}\n', '    gpus: -1\n', [
        '11: hosts.pc2.gpus: -1 is out of range; write a number of at least 0',
    ]),
    ('GPUs are too many', '    gpus:\n      - {uuid: GPU-b}\n      - {uuid: GPU-c, use: inference}\n', '    gpus: 65\n', [
        '11: hosts.pc2.gpus: 65 is out of range; write a number of at most 64',
    ]),
    ('GPUs are a word', '    gpus:\n      - {uuid: GPU-b}\n      - {uuid: GPU-c, use: inference}\n', '    gpus: two\n', [
        '11: hosts.pc2.gpus: this is not a list of GPUs; write their number (`gpus: 4`) or a list of `- {uuid: GPU-…}`',
    ]),
    ('GPUs are half', '    gpus:\n      - {uuid: GPU-b}\n      - {uuid: GPU-c, use: inference}\n', '    gpus: 1.5\n', [
        '11: hosts.pc2.gpus: this is not a list of GPUs; write their number (`gpus: 4`) or a list of `- {uuid: GPU-…}`',
    ]),
    ('GPUs are null', '    gpus:\n      - {uuid: GPU-b}\n      - {uuid: GPU-c, use: inference}\n', '    gpus:\n', [
        '11: hosts.pc2.gpus: this is not a list of GPUs; write their number (`gpus: 4`) or a list of `- {uuid: GPU-…}`',
    ]),
    ('GPUs are a boolean', '    gpus:\n      - {uuid: GPU-b}\n      - {uuid: GPU-c, use: inference}\n', '    gpus: true\n', [
        '11: hosts.pc2.gpus: this is not a list of GPUs; write their number (`gpus: 4`) or a list of `- {uuid: GPU-…}`',
    ]),
]
# Whole inventories.
DOCUMENTS: list[tuple[str, str | bytes, list[str]]] = [
    ('empty', '', [
        '1: the file is empty; begin with `cluster: …`',
    ]),
    ('comments only', '# nothing yet\n', [
        '1: the file is empty; begin with `cluster: …`',
    ]),
    ('a list', '[]\n', [
        '1: the file is not a mapping; begin with `cluster: …`',
    ]),
    ('a text', 'lab\n', [
        '1: the file is not a mapping; begin with `cluster: …`',
    ]),
    ('no hosts', 'cluster: lab\n', [
        '1: hosts: is missing; add for example `hosts: {"pc1": {"address": "192.168.8.151", "gpus": 1}}`',
    ]),
    ('hosts are null', 'cluster: lab\nhosts:\n', [
        '2: hosts: nothing is not a mapping; write for example `hosts: {"pc1": {"address": "192.168.8.151", "gpus": 1}}`',
    ]),
    ('hosts are none', 'cluster: lab\nhosts: {}\n', [
        '2: hosts: is empty; write for example `hosts: {"pc1": {"address": "192.168.8.151", "gpus": 1}}`',
    ]),
    ('hosts are a list', 'cluster: lab\nhosts:\n  - pc1\n', [
        '2: hosts: is a list; make it a mapping: `hosts: {pc1: {address: …}}`',
    ]),
    ('hosts are a number', 'cluster: lab\nhosts: 2\n', [
        '2: hosts: 2 is not a mapping; write for example `hosts: {"pc1": {"address": "192.168.8.151", "gpus": 1}}`',
    ]),
    ('a host is an address', 'cluster: lab\nhosts:\n  pc1: 192.168.8.151\n', [
        '3: hosts.pc1: \'192.168.8.151\' is not a mapping; write for example `hosts: {"pc1": {"address": "192.168.8.151", "gpus": 1}}`',
    ]),
    ('a host is null', 'cluster: lab\nhosts:\n  pc1:\n', [
        '3: hosts.pc1: nothing is not a mapping; write for example `hosts: {"pc1": {"address": "192.168.8.151", "gpus": 1}}`',
    ]),
    ('a host named as a field', 'cluster: lab\nhosts:\n  address:\n', [
        '3: hosts.address: nothing is not a mapping; write for example `hosts: {"pc1": {"address": "192.168.8.151", "gpus": 1}}`',
    ]),
    ('two documents', 'cluster: lab\n---\ncluster: lab\n', [
        '2: a second document begins here; write one in each file',
    ]),
    ('an open bracket', 'cluster: lab\nhosts: [pc1\n', [
        '3: this is not valid YAML: …; look at this line and the one before it: quotes, indentation, tabs',
    ]),
    ('a tab', 'cluster: lab\nhosts:\n\tpc1: {}\n', [
        '3: this is not valid YAML: …; look at this line and the one before it: quotes, indentation, tabs',
    ]),
    ('an open quote', "cluster: 'lab\n", [
        '2: this is not valid YAML: …; look at this line and the one before it: quotes, indentation, tabs',
    ]),
    ('Latin-1', b'# caf\xe9\ncluster: lab\n', [
        '1: this is not UTF-8 text; save the file as UTF-8',
    ]),
    ('UTF-16', b'\xff\xfec\x00l\x00', [
        '1: this is not UTF-8 text; save the file as UTF-8',
    ]),
    ('a NUL byte', 'cluster: lab\nengine: \x00\n', [
        '2: the character #x00 is not allowed in YAML; remove it',
    ]),
    ('a bell after umlauts', '# äöüäöüäöüäöü\ncluster: \x07\n', [
        '2: the character #x07 is not allowed in YAML; remove it',
    ]),
    ('an unknown alias', 'cluster: *lab\n', [
        '1: there is no anchor &lab; write &lab before the value that it stands for, above this line',
    ]),
    ('an anchor in itself', 'cluster: lab\nhosts: &hosts\n  pc1: *hosts\n', [
        '2: the anchor contains itself; write the value out once',
    ]),
    ('a merge of itself', 'hosts: &hosts {<<: *hosts}\n', [
        '1: the anchor contains itself; write the value out once',
    ]),
    ('a merge of a text', 'cluster: lab\n<<: text\n', [
        "2: << merges a mapping only; point it at a mapping's anchor",
    ]),
    ('an anchor twice', 'cluster: &a lab\nengine: &a swarm\n', [
        '2: this anchor is already defined; give it another name',
    ]),
    ('a tag', 'cluster: !secret lab\n', [
        '1: the tag !secret is not supported; leave it out',
    ]),
    ('a tag on a mapping', 'cluster: lab\nhosts: !mine {}\n', [
        '2: the tag !mine is not supported; leave it out',
    ]),
    ('a boolean that is none', 'cluster: !!bool maybe\n', [
        "1: 'maybe' is no bool; write it without the tag",
    ]),
    ('an integer that is none', 'cluster: !!int lab\n', [
        "1: 'lab' is no int; write it without the tag",
    ]),
    ('deep brackets', BRACKETS, [
        '1: this is nested too deeply; check the brackets',
    ]),
    ('deep dashes', DASHES, [
        '1: this is nested too deeply; check the brackets',
    ]),
    ('a billion laughs', LAUGHS, [
        '7: the aliases stand for too many values; write fewer',
    ]),
    ('a mapping as a key', '? {a: b}\n: c\n', [
        '1: a key must be a plain word; write `key: value`',
    ]),
    ('an escape in a key', 'cluster: lab\n"\\e[31mred": 1\n', [
        '1: hosts: is missing; add for example `hosts: {"pc1": {"address": "192.168.8.151", "gpus": 1}}`',
        '2: \\x1b[31mred: is not a known key; use one of cluster, engine, hosts, network, swarm, kubernetes, nodes, registry, data, monitoring, notify, queue',
    ]),
    ('a key within a text', 'cluster: lab\n hosts: {}\n', [
        '2: this is not valid YAML: …; look at this line and the one before it: quotes, indentation, tabs',
    ]),
]
# What is replaced in the job by what.
JOBS: list[tuple[str, str, str, list[str]]] = [
    ('image is missing', 'image: registry.lab:5000/trainer:0.2.0\n', '', [
        '1: image: is missing; add for example `image: registry.lab:5000/trainer:0.2.0`',
    ]),
    ('image is null', 'registry.lab:5000/trainer:0.2.0', '', [
        '1: image: nothing is not the name of an image; write for example registry.lab:5000/trainer:0.2.0',
    ]),
    ('image is no name', 'registry.lab:5000/trainer:0.2.0', 'My Image', [
        "1: image: 'My Image' is not the name of an image; write for example registry.lab:5000/trainer:0.2.0",
    ]),
    ('image has two tags', 'trainer:0.2.0', 'trainer:0.2.0:2', [
        "1: image: 'registry.lab:5000/trainer:0.2.0:2' is not the name of an image; write for example registry.lab:5000/trainer:0.2.0",
    ]),
    ('data set is unknown', 'digits', 'imagenet', [
        "3: train.dataset: 'imagenet' is not known; use one of digits, mnist, fashion_mnist, cifar10, cifar100, folder, shards, text",
    ]),
    ('data set is near a known one', 'digits', 'cifar', [
        "3: train.dataset: 'cifar' is not known; did you mean cifar10?",
    ]),
    ('model does not fit', 'model: cnn', 'model: lenet', [
        '4: train.model: lenet needs larger images than the 8×8 of digits; write `model: cnn`',
    ]),
    ('model of text on images', 'model: cnn', 'model: gpt', [
        '4: train.model: gpt is for text; write for example `model: cnn`',
    ]),
    ('unknown preset', 'dataset: digits\n  model: cnn',
     'dataset: text\n  path: a.txt\n  model: gpt\n  options: {preset: gpt2-big}', [
        "6: train.options: the preset 'gpt2-big' is not known; did you mean gpt2-xl?",
    ]),
    ('width and heads', 'dataset: digits\n  model: cnn',
     'dataset: text\n  path: a.txt\n  model: gpt\n  options: {width: 100, heads: 3}', [
        '6: train.options: the width 100 is not a multiple of the 3 heads; '
        'write for example `width: 192`',
    ]),
    ('address of other data', 'dataset: digits', 'dataset: digits\n  url: http://pc1/x', [
        '4: train.url: is for `dataset: shards`; leave it out',
    ]),
    ('address with a password', 'dataset: digits', 'dataset: shards\n  url: http://a:b@pc1/x', [
        "4: train.url: 'http://a:b@pc1/x' is not an address of a folder; write for example "
        '`url: http://pc1:8080/imagenet`, without user and password',
    ]),
    ('address and path', 'dataset: digits', 'dataset: shards\n  url: http://pc1\n  path: x', [
        '5: train.path: is left out with `url`; write one of them',
    ]),
    ('cache without address', 'dataset: digits', 'dataset: shards\n  path: x\n  cache_gib: 9', [
        '5: train.cache_gib: is for shards with a `url`; leave it out',
    ]),
    ('folder without path', 'dataset: digits', 'dataset: folder', [
        '2: train.path: is missing; write for example `path: flowers`, below the data folder',
    ]),
    ('text without path, with a model of images', 'dataset: digits', 'dataset: text', [
        '2: train.path: is missing; write for example `path: shakespeare.txt`, below the data folder',
        '4: train.model: cnn is for images; write `model: gpt`',
    ]),
    ('path of a known data set', 'dataset: digits', 'dataset: digits\n  path: digits', [
        '4: train.path: digits is found by its name; leave it out',
    ]),
    ('path is absolute', 'dataset: digits', 'dataset: folder\n  path: /data/flowers', [
        "4: train.path: '/data/flowers' is not a path below the data folder, without ..; write for example flowers",
    ]),
    ('path leads out', 'dataset: digits', 'dataset: folder\n  path: flowers/../..', [
        "4: train.path: 'flowers/../..' is not a path below the data folder, without ..; write for example flowers",
    ]),
    ('path is the data folder', 'dataset: digits', 'dataset: folder\n  path: ./', [
        "4: train.path: './' is not a path below the data folder, without ..; write for example flowers",
    ]),
    ('size of known images', 'dataset: digits', 'dataset: digits\n  image_size: 8', [
        '4: train.image_size: images of digits are 8×8 already; leave it out',
    ]),
    ('images of no multiple of 4', 'dataset: digits', 'dataset: folder\n  path: flowers\n  image_size: 30', [
        '5: train.image_size: 30 is not a multiple of 4; write for example `image_size: 32`',
    ]),
    ('a model of torchvision by its bare name', 'model: cnn', 'model: resnet50', [
        "4: train.model: 'resnet50' is not known; did you mean resnet18? Models of torchvision are written torchvision/<name>",
    ]),
    ('a class of torchvision', 'model: cnn', 'model: torchvision/ResNet50', [
        "4: train.model: 'torchvision/ResNet50' is not the name of a model of torchvision; write small letters, digits and _ behind the slash, such as `model: torchvision/resnet50`",
    ]),
    ('images too small for torchvision', 'dataset: digits\n  model: cnn', 'dataset: folder\n  path: flowers\n  model: torchvision/inception_v3', [
        '2: train.image_size: images of 32×32 are too small for torchvision/inception_v3; write for example `image_size: 299`',
    ]),
    ('nothing to download', 'dataset: digits', 'dataset: digits\n  download: true', [
        '4: train.download: nothing of this job can be downloaded: torchvision has no digits; leave it out; it is for mnist, fashion_mnist, cifar10, cifar100, and for weights by name',
    ]),
    ('images are huge', 'dataset: digits', 'dataset: folder\n  path: flowers\n  image_size: 2048', [
        '5: train.image_size: 2048 is out of range; write a number of at most 1024',
    ]),
    ('model of small images', 'dataset: digits\n  model: cnn', 'dataset: folder\n  path: flowers\n  image_size: 64\n  model: airbench', [
        '6: train.model: airbench needs images of 32×32; write `image_size: 32`, or `model: resnet18`',
    ]),
    ('model of colours', 'dataset: digits\n  model: cnn', 'dataset: mnist\n  model: airbench', [
        '4: train.model: airbench needs colour images; write for example `model: resnet18`',
    ]),
    ('context of images', 'batch_size: 64', 'batch_size: 64\n  context: 128', [
        '7: train.context: is for `dataset: text`; leave it out',
    ]),
    ('tokens of images', 'batch_size: 64', 'batch_size: 64\n  tokenizer: bpe', [
        '7: train.tokenizer: is for `dataset: text`; leave it out',
    ]),
    ('vocabulary of characters', 'dataset: digits\n  model: cnn', 'dataset: text\n  path: a.txt\n  model: gpt\n  vocabulary: 500', [
        '6: train.vocabulary: is for `tokenizer: bpe`; leave it out',
    ]),
    ('vocabulary that has not all bytes', 'dataset: digits\n  model: cnn', 'dataset: text\n  path: a.txt\n  model: gpt\n  tokenizer: bpe\n  vocabulary: 256', [
        '7: train.vocabulary: 256 is out of range; write a number of at least 257',
    ]),
    ('separator of characters', 'dataset: digits\n  model: cnn', 'dataset: text\n  path: a.txt\n  model: gpt\n  separator: "<end>"', [
        '6: train.separator: is for texts as tokens; leave it out, or write `tokenizer: bpe`',
    ]),
    ('separator that is no line', 'dataset: digits\n  model: cnn', 'dataset: text\n  path: a.txt\n  model: gpt\n  tokenizer: bpe\n  separator: ""', [
        '7: train.separator: is not a line with text; write for example `separator: "<|endoftext|>"`',
    ]),
    ('tokens for a model of one\'s own', 'dataset: digits\n  model: cnn', 'dataset: text\n  path: a.txt\n  tokenizer: bpe\n  model: mymodel:build', [
        '5: train.tokenizer: is for `model: gpt`; write `model: gpt`, or a function for the data, `dataset: mymodel:data`',
    ]),
    ('a validation of data of one\'s own', 'dataset: digits\n  model: cnn', 'dataset: mymodel:data\n  model: mymodel:build\n  validation: 0.1', [
        '5: train.validation: is for the trainer\'s own data sets; leave it out, and return the validation part instead of the test part',
    ]),
    ('more to validate than to train', 'batch_size: 64', 'batch_size: 64\n  validation: 0.6', [
        '7: train.validation: 0.6 is out of range; write a number of at most 0.5',
    ]),
    ('mirrored digits', 'batch_size: 64', 'batch_size: 64\n  flip_at_test: true', [
        '7: train.flip_at_test: mirrored digits are other signs; leave it out',
    ]),
    ('labels are all smooth', 'batch_size: 64', 'batch_size: 64\n  label_smoothing: 1.0', [
        '7: train.label_smoothing: 1.0 is out of range; write a number of less than 1',
    ]),
    ('half a step of warm-up', 'batch_size: 64', 'batch_size: 64\n  warm_up: 2.5', [
        '7: train.warm_up: 2.5 is no whole number of steps; write `warm_up: 2`, or a share below 1 such as 0.05',
    ]),
    ('a triangle with a warm-up', 'batch_size: 64', 'batch_size: 64\n  schedule: triangle\n  warm_up: 100', [
        '8: train.warm_up: `schedule: triangle` warms up by itself; leave it out, or write `schedule: cosine`',
    ]),
    ('a fixed graph with accumulation', 'batch_size: 64', 'batch_size: 64\n  accumulation: 2\nexchange: {static_graph: true}', [
        '8: exchange.static_graph: PyTorch cannot take it together with `accumulation`; leave one of them out',
    ]),
    ('an average of different weights', 'batch_size: 64', 'batch_size: 64\n  ema: true\nexchange: {mode: local_sgd}', [
        '7: train.ema: `ema` needs the same weights on all ranks at every step, unlike local_sgd; leave one of them out',
    ]),
    ('an average over samples of different weights', 'batch_size: 64', 'batch_size: 64\n  ema_decay: 0.9\nexchange: {mode: diloco}', [
        '7: train.ema_decay: `ema_decay` needs the same weights on all ranks at every step, unlike diloco; leave one of them out',
    ]),
    ('two averages', 'batch_size: 64', 'batch_size: 64\n  ema: true\n  ema_decay: 0.9', [
        '8: train.ema_decay: `ema` is another average of the weights; leave one of them out',
    ]),
    ('a resize of digits', 'batch_size: 64', 'batch_size: 64\n  test_resize: 32', [
        '7: train.test_resize: is for `dataset: folder` and shards; leave it out',
    ]),
    ('a smaller resize than the crop', 'dataset: digits', 'dataset: folder\n  path: flowers\n  test_resize: 16', [
        '5: train.test_resize: 16 is less than the crop of 32; write for example `test_resize: 37`',
    ]),
    ('smaller images for the test', 'dataset: digits\n  model: cnn', 'dataset: folder\n  path: flowers\n  image_size: 96\n  test_image_size: 64\n  model: torchvision/resnet18', [
        '6: train.test_image_size: 64 is less than `image_size: 96`; write 96 or more, or leave it out',
    ]),
    ('larger images for the test of a ViT', 'dataset: digits\n  model: cnn', 'dataset: folder\n  path: flowers\n  image_size: 224\n  test_image_size: 256\n  model: torchvision/vit_b_16', [
        '6: train.test_image_size: torchvision/vit_b_16 takes images of one size; leave it out',
    ]),
    ('the transform of no weights', 'dataset: digits\n  model: cnn', 'dataset: folder\n  path: flowers\n  image_size: 96\n  test_transform: weights\n  test_resize: 232\n  model: torchvision/resnet18', [
        '6: train.test_transform: is for weights by name; write for example `weights: IMAGENET1K_V2`, or `test_resize: 232` instead',
        '7: train.test_resize: `test_transform: weights` determines it; leave one of them out',
    ]),
    ('a scale of crops in the centre', 'dataset: digits', 'dataset: folder\n  path: flowers\n  crop_scale: 0.3\n  interpolation: bicubic', [
        '5: train.crop_scale: is for random crops; leave it out, or write for example `augmentation: trivial`',
        '6: train.interpolation: is for random crops; leave it out, or write for example `augmentation: trivial`',
    ]),
    ('mixed texts', 'dataset: digits\n  model: cnn', 'dataset: text\n  path: a.txt\n  mixup: 0.2\n  model: gpt', [
        "5: train.mixup: is for the trainer's own data sets of images; leave it out",
    ]),
    ('momentum of Adam', 'batch_size: 64', 'batch_size: 64\n  optimizer: adam\n  nesterov: false', [
        '8: train.nesterov: is for `optimizer: sgd`; leave it out',
    ]),
    ('the start of no warm-up', 'batch_size: 64', 'batch_size: 64\n  warm_up_start: 0.1\n  warm_up: 0', [
        '7: train.warm_up_start: is for a warm-up; write for example `warm_up: 0.05`, or leave it out',
    ]),
    ('a switch that is a word', 'batch_size: 64', 'batch_size: 64\n  tensorboard: "on"', [
        "7: train.tensorboard: 'on' is not true or false; write for example `tensorboard: true`",
    ]),
    ('frozen layers as a text', 'batch_size: 64', 'batch_size: 64\n  freeze: conv1', [
        "7: train.freeze: 'conv1' is not a list of names of layers; write for example `freeze: [conv1, layer1]`, or `freeze: [backbone]`",
    ]),
    ('frozen layers by a pattern', 'batch_size: 64', 'batch_size: 64\n  freeze: ["layer*"]', [
        "7: train.freeze: 'layer*' is not the name of a layer; write for example `freeze: [conv1, layer1]`, or `freeze: [backbone]`",
    ]),
    ('precision is unknown', 'batch_size: 64', 'batch_size: 64\n  precision: fp8', [
        "7: train.precision: 'fp8' is not known; use one of auto, fp32, bf16, fp16",
    ]),
    ('epochs are none', 'epochs: 10', 'epochs: 0', [
        '5: train.epochs: 0 is out of range; write a number of at least 1',
    ]),
    ('epochs are a text', 'epochs: 10', 'epochs: ten', [
        "5: train.epochs: 'ten' is not a whole number; write for example `epochs: 10`",
    ]),
    ('epochs are a float', 'epochs: 10', 'epochs: 1e3', [
        '5: train.epochs: 1000.0 is not a whole number; write for example `epochs: 10`',
    ]),
    ('epochs are a boolean', 'epochs: 10', 'epochs: true', [
        '5: train.epochs: true is not a whole number; write for example `epochs: 10`',
    ]),
    ('epochs are null', 'epochs: 10', 'epochs:', [
        '5: train.epochs: nothing is not a whole number; write for example `epochs: 10`',
    ]),
    ('epochs are misspelt', 'epochs: 10', 'epocs: 10', [
        '2: train.epochs: is missing; add for example `epochs: 10`',
        '5: train.epocs: is not a known key; did you mean epochs?',
    ]),
    ('batch is negative', 'batch_size: 64', 'batch_size: -64', [
        '6: train.batch_size: -64 is out of range; write a number of at least 1',
    ]),
    ('batch is beyond counting', 'batch_size: 64', 'batch_size: ' + NINES, [
        '6: 9999999999999999999999999999999999999999999999999999999999 is too large; write at most 9223372036854775807',
    ]),
    ('rate is nothing', 'batch_size: 64', 'batch_size: 64\n  learning_rate: 0', [
        '7: train.learning_rate: 0 is out of range; write a number of more than 0',
    ]),
    ('rate is infinite', 'batch_size: 64', 'batch_size: 64\n  learning_rate: .inf', [
        '7: train.learning_rate: inf is not a number; write for example `learning_rate: 0.1`',
    ]),
    ('rate is a boolean', 'batch_size: 64', 'batch_size: 64\n  learning_rate: true', [
        '7: train.learning_rate: true is not a number; write for example `learning_rate: 0.1`',
    ]),
    ('rate is a text', 'batch_size: 64', 'batch_size: 64\n  learning_rate: "0.1"', [
        "7: train.learning_rate: '0.1' is not a number; write for example `learning_rate: 0.1`",
    ]),
    ('decay is negative', 'batch_size: 64', 'batch_size: 64\n  weight_decay: -0.1', [
        '7: train.weight_decay: -0.1 is out of range; write a number of at least 0',
    ]),
    ('seed is too large', 'batch_size: 64', 'batch_size: 64\n  seed: 4294967296', [
        '7: train.seed: 4294967296 is out of range; write a number of less than 4294967296',
    ]),
    ('optimizer is misspelt', 'batch_size: 64', 'batch_size: 64\n  optimizer: sdg', [
        "7: train.optimizer: 'sdg' is not known; did you mean sgd?",
    ]),
    ('train is a text', 'train:\n', 'train: digits\nchekpoint:\n', [
        '2: train: \'digits\' is not a mapping; write for example `train: {"dataset": "mnist", "model": "cnn", "epochs": 10, "batch_size": 64}`',
        '3: chekpoint: is not a known key; did you mean checkpoint?',
    ]),
    ('nothing to run', 'train:\n  dataset: digits\n  model: cnn\n  epochs: 10\n  batch_size: 64\n', '', [
        '1: there is nothing to run; write exactly one of `train:`, `command:` and `session:`',
    ]),
]
# What the job has besides.
ADDED: list[tuple[str, list[str]]] = [
    ('command: [ddp.py]', [
        '1: train and command are both given; write exactly one of `train:`, `command:` and `session:`',
    ]),
    ('data: [cifar10@2]', [
        "7: data[0]: 'cifar10@2' is not the name of a data set; write `{name: cifar10, version: 2}`",
    ]),
    ('data: [{name: cifar10, stream: true}]', [
        '7: data[0].stream: the built-in training streams `dataset: shards`, not digits; leave it out: each host fetches it',
    ]),
    ('command: ddp.py 50', [
        '7: command: is a list of words; write `command: [ddp.py, "50"]`',
    ]),
    ('batch_size: 64', [
        '7: batch_size: is for `command`; keep the one in `train:`',
    ]),
    ('parameters: 5', [
        '7: parameters: is for `command`; leave it out: kit knows its own models',
    ]),
    ('hosts:', [
        '7: hosts: nothing is not a mapping; write for example `hosts: {"names": ["pc1"]}`, or leave it out',
    ]),
    ('hosts: [pc1]', [
        '7: hosts: ["pc1"] is not a mapping; write for example `hosts: {"names": ["pc1"]}`',
    ]),
    ('hosts: {names: pc1}', [
        '7: hosts.names: \'pc1\' is not a list; write for example `names: ["pc1", "gpu[001-064]"]`',
    ]),
    ('hosts: {names: []}', [
        '7: hosts.names: is empty; write for example `names: ["pc1", "gpu[001-064]"]`',
    ]),
    ('hosts: {names: [pc3]}', [
        '7: hosts.names[0]: pc3 is not in the inventory; did you mean pc2?',
    ]),
    ('hosts: {names: ["pc[1-3]"]}', [
        '7: hosts.names[0]: pc3 is not in the inventory; did you mean pc2?',
    ]),
    ('hosts: {names: ["pc[2-1]"]}', [
        "7: hosts.names[0]: 'pc[2-1]' runs backwards; put the smaller number first",
    ]),
    ('hosts: {names: [1]}', [
        '7: hosts.names[0]: 1 is not a text; write for example `names: ["pc1", "gpu[001-064]"]`',
    ]),
    ('hosts: {gpus_per_host: 0}', [
        '7: hosts.gpus_per_host: 0 is out of range; write a number of at least 1',
    ]),
    ('hosts: {gpus_per_host: 2}', [
        '7: hosts.gpus_per_host: wants 2 GPUs on pc1, which has 1 for training; write a smaller number, or name the hosts that have as many (`hosts: {names: …}`)',
    ]),
    ('hosts: {gpus_per_host: 1.5}', [
        '7: hosts.gpus_per_host: 1.5 is not a whole number; write for example `gpus_per_host: 1`',
    ]),
    ('hosts: {gpus: {pc1: [GPU-a], pc3: [0]}}', [
        '7: hosts.gpus.pc3: pc3 is not in the inventory; did you mean pc2?',
    ]),
    ('hosts: {gpus: {pc1: [GPU-a, GPU-z]}}', [
        '7: hosts.gpus.pc1[1]: pc1 has no GPU GPU-z; write some of GPU-a',
    ]),
    ('hosts: {gpus: {pc2: [GPU-c]}}', [
        '7: hosts.gpus.pc2[0]: GPU-c of pc2 is not for training; write some of GPU-b, or set `use: training`',
    ]),
    ('hosts: {gpus: {pc1: [GPU-a, GPU-a]}}', [
        '7: hosts.gpus.pc1: names a GPU twice; name it once',
    ]),
    ('hosts: {names: [pc2], gpus: {pc1: [GPU-a]}}', [
        '7: hosts.gpus: names its hosts and GPUs already; leave `names` out',
    ]),
    ('hosts: {gpus: {pc1: [true]}}', [
        '7: hosts.gpus.pc1[0]: true is not a text; write for example `gpus: {"pc1": [0, 1]}`',
    ]),
    ('hosts: {min: 3}', [
        '7: hosts.min: the job wants at least 3 hosts, 2 can take part; write a number from 1 to 2',
    ]),
    ('hosts: {min: 0}', [
        '7: hosts.min: 0 is out of range; write a number of at least 1',
    ]),
    ('hosts: {max: 3}', [
        '7: hosts.max: is for jobs with `queue`; leave it out, or write `queue: {owner: …}`',
    ]),
    ('gpus: {min: 2}', [
        '7: gpus: is for jobs with `queue`; leave it out, or write `queue: {owner: …}`',
    ]),
    ('queue: {}', [
        '7: queue.owner: is missing; add for example `owner: anna`',
    ]),
    ('queue: {owner: anna}\ngpus: {min: 3, max: 2}', [
        '8: gpus.max: is smaller than `min`, 3; write at least 3',
    ]),
    ('queue: {owner: anna}\ngpus: {min: 4}', [
        '8: gpus.min: the job wants at least 4 GPUs, the pool has 2 for it; write a number from 1 to 2',
    ]),
    ('queue: {owner: anna}\nhosts: {min: 3}', [
        '8: hosts.min: the job wants at least 3 hosts, the pool has 2 for it; write a number from 1 to 2',
    ]),
    ('queue: {owner: anna}\nhosts: {min: 2, max: 1}', [
        '8: hosts.max: is smaller than `min`, 2; write at least 2',
    ]),
    ('queue: {owner: anna}\nhosts: {min: 2}\ngpus: {min: 2}', [
        '8: hosts.min: `gpus` says how many already, on any hosts; leave one of the two out',
    ]),
    ('queue: {owner: anna}\nhosts: {gpus: {pc1: [GPU-a]}}', [
        '8: hosts.gpus: the queue chooses the GPUs; name hosts: `names`',
    ]),
    ('queue: {owner: anna}\nhosts: {gpus_per_host: 3}', [
        '8: hosts: no host of the pool has 3 GPUs for it; see `kit plan`: other jobs have the GPUs',
    ]),
    ('queue: {owner: anna}\nparallel: {shard: 2}', [
        '7: queue: ranks that divide a model keep their hosts, and the queue changes the hosts; leave one of the two out',
    ]),
    ("reference_batch: '256'", [
        "7: reference_batch: '256' is not a whole number; write for example `reference_batch: 256`",
    ]),
    ('checkpoint: 5', [
        '7: checkpoint: 5 is not a mapping; write for example `checkpoint: {"every_epochs": 1, "keep": 3}`',
    ]),
    ('checkpoint: {keep: 0}', [
        '7: checkpoint.keep: 0 is out of range; write a number of at least 1',
    ]),
    ('checkpoint: {every: 1}', [
        '7: checkpoint.every: is not a known key; use one of every_epochs, keep, asynchronous, files',
    ]),
    ('checkpoint: {files: [a.pt]}', [
        '7: checkpoint.files: is for `command`; leave it out: the built-in training saves by itself',
    ]),
    ('mounts: {/srv: /data}', [
        '7: mounts: {"/srv": "/data"} is not a list; write for example `mounts: [{"bind": "/srv/data", "to": "/data"}]`',
    ]),
    ('mounts: [/srv/data]', [
        '7: mounts[0]: a mount is exactly one of bind, volume and nfs; write for example `- {bind: /srv/data, to: /data}`',
    ]),
    ('mounts: [{bind: /srv/data}]', [
        '7: mounts[0].to: is missing; add for example `to: /data`',
    ]),
    ('mounts: [{bind: data, to: /data}]', [
        "7: mounts[0].bind: 'data' is not an absolute path without ..; write for example /data",
    ]),
    ('mounts: [{bind: /srv/../etc, to: /data}]', [
        "7: mounts[0].bind: '/srv/../etc' is not an absolute path without ..; write for example /data",
    ]),
    ('mounts: [{bind: /a, volume: b, to: /c}]', [
        '7: mounts[0]: a mount is exactly one of bind, volume and nfs; write for example `- {bind: /srv/data, to: /data}`',
    ]),
    ('mounts: [{nfs: /export, to: /data}]', [
        "7: mounts[0].nfs: '/export' is not an NFS export; write for example 192.168.8.151:/export/data",
    ]),
    ('mounts: [{volume: My_Data, to: /data}]', [
        "7: mounts[0].volume: 'My_Data' is not a DNS label (at most 63 lower-case letters, digits, inner hyphens); write for example my-data",
    ]),
    ('mounts: [{bind: /a, to: /c}, {bind: /b, to: /c/}]', [
        '7: mounts[1].to: two mounts at /c; give each its own folder',
    ]),
    ('mounts: [{bind: /a, to: /dev/shm}]', [
        "7: mounts[0].to: kit mounts /dev/shm itself; set `limits: {shared_memory: 16GiB}`",
    ]),
    ('mounts: [{bind: /a, to: /}]', [
        '7: mounts[0].to: nothing can be mounted over the whole container; write for example /data',
    ]),
    ('mounts: [{bind: /a, to: /kit/job.json}]', [
        "7: mounts[0].to: /kit is reserved for kit; write for example /data",
    ]),
    ('mounts: [{bind: /a, to: /data, ro: true}]', [
        '7: mounts[0].ro: is not a known key; use one of bind, to, read_only',
    ]),
    ('mounts: [{bind: /a, to: /data, read_only: yes}]', [
        "7: mounts[0].read_only: 'yes' is not true or false; write for example `read_only: false`",
    ]),
    ('secrets: {TOKEN: hush}', [
        '7: secrets.TOKEN: names the source of a secret, not the secret itself; write `env` (the variable of that name where kit runs) or `{file: ~/key}`',
    ]),
    ('secrets: {TOKEN: {path: /x}}', [
        '7: secrets.TOKEN: names the source of a secret, not the secret itself; write `env` (the variable of that name where kit runs) or `{file: ~/key}`',
    ]),
    ('secrets: {TOKEN: {file: key}}', [
        "7: secrets.TOKEN.file: is the path of a file, which begins with / or ~/; keep the secret outside the repository, for example ~/.wandb-key",
    ]),
    ('secrets: [TOKEN]', [
        '7: secrets: is not a mapping; write for example `secrets: {WANDB_API_KEY: env}`',
    ]),
    ('secrets: {RANK: env}', [
        '7: secrets.RANK: is set by kit from the plan; leave it out',
    ]),
    ('environment: {TOKEN: x}\nsecrets: {TOKEN: env}', [
        '8: secrets.TOKEN: is in `environment` too; keep one of the two',
    ]),
    ('environment: [A=1]', [
        '7: environment: ["A=1"] is not a mapping; write for example `environment: {"PYTHONUNBUFFERED": "1"}`',
    ]),
    ('environment: {MY-VAR: 1}', [
        '7: environment.MY-VAR: is not the name of a variable; use letters, digits and _',
    ]),
    ('environment: {DEBUG: true}', [
        '7: environment.DEBUG: true is a YAML boolean; write "true", or "1" or "0", in quotes',
    ]),
    ('environment: {VERSION: 1.10}', [
        '7: environment.VERSION: 1.1 is a number, and YAML does not keep its digits; write it in quotes',
    ]),
    ('environment: {DEBUG: }', [
        '7: environment.DEBUG: nothing is not a text; write one value, in quotes',
    ]),
    ('environment: {DEBUG: {a: b}}', [
        '7: environment.DEBUG: {"a": "b"} is not a text; write one value, in quotes',
    ]),
    ('environment: {RANK: 1, KIT_JOB: x, NCCL_DEBUG: INFO}', [
        '7: environment.RANK: is set by kit from the plan; leave it out',
        '7: environment.KIT_JOB: is set by kit from the plan; leave it out',
        "7: environment.NCCL_DEBUG: belongs in the job's nccl section; move it to `nccl:`",
    ]),
    ("environment: {'[key]': 1}", [
        '7: environment.[key]: is not the name of a variable; use letters, digits and _',
    ]),
    ('nccl: {DEBUG: INFO}', [
        '7: nccl.DEBUG: is not a variable of NCCL; write NCCL_DEBUG, or move it to environment',
    ]),
    ('mounts: [{bind: /srv/a, to: /opt/kit}]', [
        '7: mounts[0].to: /opt/kit holds the trainer that `train` runs; choose another folder',
    ]),
    ('mounts: [{bind: /srv/a, to: /a}, {bind: /srv/b, to: //a/}]', [
        '7: mounts[1].to: two mounts at /a; give each its own folder',
    ]),
    ('limits: {shared_memory: 16G}', [
        "7: limits.shared_memory: '16G' has the unit G, which is not exact; write 16GiB",
    ]),
    ('limits: {memory: 0GiB}', [
        "7: limits.memory: '0GiB' is not a size; write for example 24GiB",
    ]),
    ('limits: {cpus: 0}', [
        '7: limits.cpus: 0 is out of range; write a number of at least 0.01',
    ]),
    ('limits: {cpus: 1e-7}', [
        '7: limits.cpus: 1e-07 is out of range; write a number of at least 0.01',
    ]),
    ('limits: {memory: 1B}', [
        '7: limits.memory: Docker starts no container with 1B; write at least 6MiB',
    ]),
    ('mounts: [{bind: /a, to: /././kit}]', [
        "7: mounts[0].to: /kit is reserved for kit; write for example /data",
    ]),
    ('mounts: [{bind: /a, to: //./dev/./shm/}]', [
        "7: mounts[0].to: kit mounts /dev/shm itself; set `limits: {shared_memory: 16GiB}`",
    ]),
    ('working_dir: "/a\\0b"', [
        '7: the character #x00 is not allowed; remove it',
    ]),
    ('environment: {"A\\0": x}', [
        '7: the character #x00 is not allowed; remove it',
    ]),
    ('limits: {cpus: .inf}', [
        '7: limits.cpus: inf is not a number; write for example `cpus: 8`',
    ]),
    ('limits: {memlock: -1}', [
        "7: limits.memlock: -1 is Docker's syntax; write unlimited",
    ]),
    ('limits:', [
        '7: limits: nothing is not a mapping; write for example `limits: {"shared_memory": "16GiB"}`, or leave it out',
    ]),
    ('rendezvous: {port: 80}', [
        '7: rendezvous.port: 80 is out of range; write a number of at least 1024',
    ]),
    ('rendezvous: 29400', [
        '7: rendezvous: 29400 is not a mapping; write for example `rendezvous: {"port": 29400}`',
    ]),
    ('stop_grace_period: 60', [
        '7: stop_grace_period: 60 has no unit; use s, m or h, for example 60s',
    ]),
    ('stop_grace_period: 0s', [
        "7: stop_grace_period: '0s' is not a duration; write for example 60s",
    ]),
    ('working_dir: src', [
        "7: working_dir: 'src' is not an absolute path without ..; write for example /data",
    ]),
    ('working_dir: /workspace', [
        '7: working_dir: is for `command`; leave it out',
    ]),
    ('exchange: {every_steps: 64}', [
        '7: exchange.every_steps: is for the modes with local steps; write `mode: local_sgd` or `mode: diloco`, or leave it out',
    ]),
    ('exchange: {mode: every_step, warm_up_steps: 0}', [
        '7: exchange.warm_up_steps: is for the modes with local steps, and for powersgd; write `mode: local_sgd` or `mode: diloco`, or leave it out',
    ]),
    ('exchange: {mode: diloco, every_steps: 0, compression: powersgd, static_graph: true}', [
        '7: exchange.every_steps: 0 is out of range; write a number of at least 1',
        '7: exchange.compression: powersgd compresses gradients, and diloco exchanges parameters; write `compression: fp16`, or `mode: every_step`',
        '7: exchange.static_graph: is for `mode: every_step`; leave it out',
    ]),
    ('exchange: {overlap: true}', [
        '7: exchange.overlap: DDP overlaps with the backward pass by itself; write `mode: local_sgd` or `mode: diloco`, or leave it out',
    ]),
    ('exchange: {bucket_mib: 5}\nparallel: {shard: 2}', [
        '7: exchange.bucket_mib: `parallel:` exchanges without DDP; leave it out',
    ]),
    ('exchange: {mode: diloco}\nfaults: {repeat_above: 10, compare_every: 50}', [
        '8: faults.repeat_above: is for `mode: every_step`, unlike diloco; leave one of them out',
        '8: faults.compare_every: is for `mode: every_step`, unlike diloco; leave it out',
    ]),
    ('exchange: {mode: dilco}', [
        "7: exchange.mode: 'dilco' is not known; did you mean diloco?",
    ]),
    ('exchange: {bucket_mib: 2000}', [
        '7: exchange.bucket_mib: 2000 is out of range; write a number of at most 1024',
    ]),
    ('exchange: {timeout: 60}', [
        '7: exchange.timeout: 60 has no unit; use s, m or h, for example 60s',
    ]),
    ('exchange: diloco', [
        '7: exchange: \'diloco\' is not a mapping; write for example `exchange: {"mode": "diloco", "every_steps": 128, "compression": "fp16"}`',
    ]),
    ('notify: https://hooks.lab/kit', [
        '7: notify: is not a list of receivers; write for example `notify: [{url: https://hooks.example.com/kit}]`',
    ]),
    ('notify: [tgram://token/chat]', [
        '7: notify[0]: is not a receiver; write for example `notify: [{url: https://hooks.example.com/kit}]`',
    ]),
    ('notify: [{url: hooks.lab/kit}]', [
        '7: notify[0].url: is no http:// or https:// URL; write for example https://hooks.example.com/kit',
    ]),
    ('notify: [{url: "https://me:word@hooks.lab/kit"}]', [
        '7: notify[0].url: has a user or a password; write `{env: NAME}` (a variable where kit runs) or `{file: ~/url}`',
    ]),
    ('notify: [{url: "tgram://token/chat"}]', [
        '7: notify[0].url: a URL of Apprise holds passwords or tokens; write `{env: NAME}` (a variable where kit runs) or `{file: ~/url}`',
    ]),
    ('notify: [{url: {secret: hush}}]', [
        '7: notify[0].url: is no URL; write `{env: NAME}` (a variable where kit runs) or `{file: ~/url}`',
    ]),
    ('notify: [{url: {env: HOOK}, key: hush, on: [complete]}]', [
        '7: notify[0].on[0]: \'complete\' is not known; did you mean completed?',
        '7: notify[0].key: names the source of the key, not the key itself; write `{env: NAME}` (a variable where kit runs) or `{file: ~/key}`',
    ]),
    ('notify: [{url: {env: HOOK}, on: [failed, failed]}]', [
        '7: notify[0].on[1]: failed is named twice; keep one of the two',
    ]),
    ('notify: [{on: []}]', [
        '7: notify[0].url: is missing; add for example `url: https://hooks.example.com/kit`',
        '7: notify[0].on: is empty; write for example `on: ["completed", "failed"]`',
    ]),
    ('step_seconds: 0', [
        '7: step_seconds: 0 is out of range; write a number of more than 0',
    ]),
    ('metrics: {port: 80}', [
        '7: metrics.port: 80 is out of range; write a number of at least 1024',
    ]),
    ('metrics: {port: 9500}\nrendezvous: {port: 9500}', [
        "7: metrics.port: 9500 is the coordinator's port already; write for example 9501",
    ]),
    ('resources: {gpus: 2}', [
        '7: resources: is not a known key; write `hosts: {gpus_per_host: 1}` and `limits: {memory: 24GiB, cpus: 8}`',
    ]),
]
# What a job has after its image.
COMMANDS: list[tuple[str, list[str]]] = [
    ('framework: tensorflow\ncommand: [train.py]\nhosts: {min: 1}', [
        '4: hosts.min: TensorFlow trains with all of its 2 hosts or not at all; leave it out',
    ]),
    ('setup: pip install tqdm\ncommand: [train.py]', [
        '2: setup: is a list of lines; write `setup: ["pip install tqdm"]`',
    ]),
    ('setup: [""]\ncommand: [train.py]', [
        '2: setup[0]: is not a command; leave it out',
    ]),
    ('setup: [pip install tqdm]\ntrain: {dataset: mnist, model: cnn, epochs: 1, batch_size: 1}', [
        '2: setup: is for `command`: containers of `train` are read-only; build an image that has it',
    ]),
    ('quiet: off\ncommand: [train.py]', [
        "2: quiet: 'off' is not a duration; write for example 60s, or 0 for never",
    ]),
    ('quiet: 10\ncommand: [train.py]', [
        "2: quiet: 10 has no unit; use s, m or h, for example 10s, or 0 for never",
    ]),
    ('quiet: 10m\ntrain: {dataset: mnist, model: cnn, epochs: 1, batch_size: 1}', [
        '2: quiet: is for `command`; leave it out: `train` notices a worker that hangs after 10 s',
    ]),
    ('session: {}\ncommand: [train.py]', [
        '1: command and session are both given; write exactly one of `train:`, `command:` and `session:`',
    ]),
    ('session: {}\nquiet: 10m', [
        '3: quiet: is not for a session; leave it out',
    ]),
    ('session: {}', [
        '1: hosts: a session is on one host, this one on 2; write `hosts: {names: [pc1]}`',
    ]),
    ('session: {keys: [ssh-ed25519]}', [
        '2: session.keys[0]: is not one public SSH key; write a line as in ~/.ssh/id_ed25519.pub: ssh-ed25519 AAAA… anna@laptop',
    ]),
    ('session: {keys: [ssh-ed25519 AAAAC3NzaC1yc2E]}', [
        '2: session.keys[0]: is cut short, or no ssh-ed25519; write a line as in ~/.ssh/id_ed25519.pub: ssh-ed25519 AAAA… anna@laptop',
    ]),
    ('session: {home: /workspace}', [
        "2: session.home: /workspace is a folder of the container; write the home of the image's user",
    ]),
    ('max_duration: 12\ncommand: [train.py]', [
        "2: max_duration: 12 has no unit; use s, m or h, for example 12s",
    ]),
    ('max_duration: 1h\nidle: 60m\ncommand: [train.py]', [
        "3: idle: is not shorter than `max_duration`, after which the job ends anyway; leave it out, or write a shorter time",
    ]),
    ('walltime: 12h\ncommand: [train.py]', [
        "2: walltime: is not a known key; write `max_duration: 12h`",
    ]),
    ('framework: jax\ncommand: [train.py]', [
        "2: framework: 'jax' is not known; use one of pytorch, tensorflow",
    ]),
    ('framework: tensorflow\ntrain: {dataset: mnist, model: cnn, epochs: 1, batch_size: 1}', [
        "2: framework: is for `command`; leave it out: `train` is PyTorch's",
    ]),
    ('framework: tensorflow\ncommand: [train.py]\nenvironment: {TF_CONFIG: "{}"}', [
        '4: environment.TF_CONFIG: is set by kit from the plan; leave it out',
    ]),
    ('command: [ddp.py]\nexchange: {mode: diloco}', [
        '3: exchange: is for `train`; leave it out: a script exchanges by itself',
    ]),
    ('command: [""]', [
        '2: command: names no script; begin with the script, as in `command: [ddp.py, "50"]`, or with `-m` and a module',
    ]),
    ('command: [-m]', [
        '2: command: names no script; begin with the script, as in `command: [ddp.py, "50"]`, or with `-m` and a module',
    ]),
    ('command: []', [
        '2: command: is empty; write for example `command: ["ddp.py", "50", "10", "--batch_size", "256"]`',
    ]),
    ('command: torchrun --nnodes=2 --rdzv_endpoint=$MASTER_ADDR:48123 "my ddp.py" 50', [
        '2: command: is a list of words; write `command: ["my ddp.py", "50"]`',
    ]),
    ('command: [python3.11, -u, -m, torch.distributed.run, --nproc_per_node, "2", -m, train, "1"]', [
        '2: command: the command begins with python3.11; kit starts Python itself; write `command: [-m, train, "1"]`',
    ]),
    ('command: [accelerate, launch, --config_file=two.yaml, llama.py, --lora]', [
        '2: command: the command begins with accelerate; kit starts torchrun itself; write `command: [llama.py, --lora]`',
    ]),
    ('command: [python, -c, "1"]', [
        '2: command: the command begins with python; kit starts Python itself; write the code into a file, and begin with the script, as in `command: [ddp.py, "50"]`',
    ]),
    ('command: [bash, -c, python train.py]', [
        '2: command: the command begins with bash; kit starts Python itself; write `command: [train.py]`',
    ]),
    ('command: [--nproc_per_node=2, train.py]', [
        '2: command: the command begins with the option --nproc_per_node=2; write `command: [train.py]`',
    ]),
    ('setup: |\n  pip install a\n\n  pip install b\ncommand: [train.py]', [
        '2: setup: is a list of lines; write `setup: ["pip install a", "pip install b"]`',
    ]),
    ('command: [train.py]\nshm_size: 16g\nvolumes: [/srv:/data]\nnproc_per_node: 4\nnnodes: 2', [
        '3: shm_size: is not a known key; write `limits: {shared_memory: 16GiB}`',
        '4: volumes: is not a known key; write `mounts: [{bind: /srv/data, to: /data}]`',
        '5: nproc_per_node: is not a known key; write `hosts: {gpus_per_host: 1}`',
        '6: nnodes: is not a known key; write `hosts: {names: [pc1, pc2]}`',
    ]),
    ('command: [train.py]\ncheckpoint: {every_epochs: 10, keep: 2, asynchronous: false}', [
        '3: checkpoint.every_epochs: is for `train`; leave it out: a script saves by itself',
        '3: checkpoint.asynchronous: is for `train`; leave it out: a script saves by itself',
        '3: checkpoint.keep: counts versions of `files`; name the files that the script saves, as in `files: [snapshot.pt]`',
    ]),
    ("command: ''", [
        '2: command: is a list of words; write `command: [ddp.py]`',
    ]),
    ('command: 5', [
        '2: command: 5 is not a list; write for example `command: ["ddp.py", "50", "10", "--batch_size", "256"]`',
    ]),
    ('command: [torchrun, ddp.py]', [
        '2: command: the command begins with torchrun; kit starts torchrun itself; write `command: [ddp.py]`',
    ]),
    ('command: [null]', [
        '2: command[0]: nothing is not a text; write for example `command: ["ddp.py", "50", "10", "--batch_size", "256"]`',
    ]),
    ('command: [ddp.py, [50]]', [
        '2: command[1]: [50] is not a text; write for example `command: ["ddp.py", "50", "10", "--batch_size", "256"]`',
    ]),
    ('command: [ddp.py]\ncheckpoint:\n  files: [a.pt, "../b.pt", "", "d/", "*.pt", 5]', [
        "4: checkpoint.files[1]: '../b.pt' is not the path of a file, without ..; write for example snapshot.pt, or /data/snapshot.pt",
        "4: checkpoint.files[2]: '' is not a path; write for example snapshot.pt",
        "4: checkpoint.files[3]: 'd/' is not the path of a file, without ..; write for example snapshot.pt, or /data/snapshot.pt",
        "4: checkpoint.files[4]: '*.pt' is a pattern; name each file",
        '4: checkpoint.files[5]: 5 is not a path; write for example snapshot.pt',
    ]),
    ('command: [ddp.py]\ncheckpoint:\n  files: [a.pt, ./a.pt]', [
        '4: checkpoint.files[1]: a.pt is named twice; keep one of the two',
    ]),
    ('command: [ddp.py]\ncheckpoint:\n  files: []', [
        '4: checkpoint.files: is empty; write for example `files: ["snapshot.pt"]`',
    ]),
    ('command: [ddp.py]\ncheckpoint:\n  files: snapshot.pt', [
        '4: checkpoint.files: \'snapshot.pt\' is not a list; write for example `files: ["snapshot.pt"]`',
    ]),
    ('command: [ddp.py, true]', [
        '2: command[1]: true is not a text; write for example `command: ["ddp.py", "50", "10", "--batch_size", "256"]`',
    ]),
]
# The whole of an images.lock, and what is wrong in it.
LOCKS: list[tuple[str, str, list[str]]] = [
    ('a tag for a digest', 'registry:2: latest\n', [
        "1: 'latest' is not the digest of an image",
    ]),
    ('a digest cut short', 'registry:2: sha256:abc\n', [
        "1: 'sha256:abc' is not the digest of an image",
    ]),
    ('no digests', '# mine\nregistry:2:\nregistry:3: 12\n', [
        '2: nothing is not the digest of an image',
        '3: 12 is not the digest of an image',
    ]),
    ('no image', f'-x: {DIGEST}\n', [
        "1: '-x' is not the name of an image",
    ]),
    ('an image with a digest', f'registry:2@{DIGEST}: {DIGEST}\n', [
        f'1: registry:2@{DIGEST} has its digest already',
    ]),
    ('a list', '- registry:2\n', [
        '1: this is not a lock file of kit',
    ]),
    ('a text', 'registry:2\n', [
        '1: this is not a lock file of kit',
    ]),
    ('an image twice', f'registry:2: {DIGEST}\nregistry:2: {DIGEST}\n', [
        '2: the key registry:2 is already given in line 1; keep one of the two',
    ]),
    ('a conflict of git', f'<<<<<<< HEAD\nregistry:2: {DIGEST}\n', [
        '2: this is not valid YAML: …; look at this line and the one before it: quotes, indentation, tabs',
    ]),
]
# fmt: on
