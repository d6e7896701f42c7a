"""The assignment of GPUs, and all numbers that follow from it."""

import difflib
import json
from collections.abc import Mapping

import pytest

from kit.plan.types import Placement
from kit.targets.swarm.stacks import Service, Stack
from tests.sandbox import COMMAND, INVENTORY, JOB, SERVER, Project, snapshot

FOUR = """\
cluster: lab
engine: swarm
hosts:
  a: {address: 10.0.0.1, gpus: 4, speed: 10Gbit}
  b:
    address: 10.0.0.2
    roles: [manager]
    gpus:
      - {uuid: GPU-b0}
      - {uuid: GPU-b1}
      - {uuid: GPU-b2, use: inference}
      - {uuid: GPU-b3, use: none}
  c: {address: 10.0.0.3}
  d: {address: 10.0.0.4, gpus: 4}
"""

ALLOCATIONS: list[tuple[str, dict[str, str], dict[str, dict[str, str]]]] = [
    (
        "all that is for training",
        {"j": ""},
        {"j": {"a": "0 1 2 3", "b": "GPU-b0 GPU-b1", "d": "0 1 2 3"}},
    ),
    ("named hosts", {"j": "{names: [d, b]}"}, {"j": {"b": "GPU-b0 GPU-b1", "d": "0 1 2 3"}}),
    ("one GPU of each", {"j": "{gpus_per_host: 1}"}, {"j": {"a": "0", "b": "GPU-b0", "d": "0"}}),
    (
        "side by side on the same hosts",
        {
            "j": "{gpus_per_host: 1}",
            "k": "{gpus_per_host: 1}",
            "l": "{names: [a, d], gpus_per_host: 2}",
        },
        {
            "j": {"a": "0", "b": "GPU-b0", "d": "0"},
            "k": {"a": "1", "b": "GPU-b1", "d": "1"},
            "l": {"a": "2 3", "d": "2 3"},
        },
    ),
    (
        "side by side on hosts of their own",
        {"j": "{names: [a]}", "k": "{names: [b, d]}"},
        {"j": {"a": "0 1 2 3"}, "k": {"b": "GPU-b0 GPU-b1", "d": "0 1 2 3"}},
    ),
    ("a name twice", {"j": "{names: [a, a]}"}, {"j": {"a": "0 1 2 3"}}),
]  # fmt: skip


def ids(placement: Placement) -> tuple[str, ...]:
    return tuple(gpu.id for gpu in placement.gpus)


def working(stack: Stack) -> list[Service]:
    """The services that train or answer."""
    return [service for service in stack.services if service.part.role.works]


def visible(service: Service) -> tuple[str, tuple[str, ...], str]:
    """A service's name, its hosts, and the GPUs that its containers see."""
    found = {each.name: each.value for each in service.environment}
    gpus = str(found["NVIDIA_VISIBLE_DEVICES"])
    return service.part.name, tuple(host.name for host in service.part.hosts), gpus


def with_hosts(hosts: Mapping[str, str], job: str = JOB) -> dict[str, str]:
    return {name: job + (f"hosts: {wanted}\n" if wanted else "") for name, wanted in hosts.items()}


@pytest.mark.parametrize(("name", "wanted", "given"), ALLOCATIONS)
def test_gpus_go_to_jobs(
    project: Project, name: str, wanted: dict[str, str], given: dict[str, dict[str, str]]
) -> None:
    plan = project.write(FOUR, with_hosts(wanted)).plan()
    found = {
        job.name: {part.host.name: " ".join(ids(part)) for part in job.placements}
        for job in plan.jobs
    }
    assert found == given


def test_a_range_names_hosts(project: Project) -> None:
    inventory = (
        "cluster: lab\nhosts:\n"
        '  "n[08-11]": {address: "10.0.0.[8-11]", gpus: 1, roles: [manager]}\n'
    )
    plan = project.write(inventory, with_hosts({"j": '{names: ["n[09-10]", n11]}'})).plan()
    assert [part.host.name for part in plan.jobs[0].placements] == ["n09", "n10", "n11"]


SPARES = """\
cluster: lab
engine: swarm
hosts:
  a: {address: 10.0.0.1, roles: [manager], gpus: [{uuid: GPU-a}]}
  b: {address: 10.0.0.2, gpus: [{uuid: GPU-b}]}
  s: {address: 10.0.0.3, gpus: [{uuid: GPU-s0, use: spare}, {uuid: GPU-s1, use: spare}]}
"""


def test_a_spare_is_in_no_figure_of_the_job(project: Project) -> None:
    alone = project.write(SPARES.replace("use: spare", "use: none")).plan().jobs[0]
    job = project.write(SPARES).plan().jobs[0]
    assert [(each.host.name, each.first_rank, ids(each)) for each in job.spares] == [
        ("s", 2, ("GPU-s0", "GPU-s1"))
    ]
    assert job.placements == alone.placements
    assert (job.nodes, job.world_size, job.batch) == ((2, 2), 2, alone.batch)
    assert job.traffic == alone.traffic
    assert job.inventory_hash != alone.inventory_hash


def test_a_spare_has_a_service_of_its_own(project: Project) -> None:
    train = {
        part.name: {variable.name: variable.value for variable in part.environment}
        for part in project.write(SPARES).workload().parts
    }
    assert train.keys() == {
        "rendezvous",
        "train-on-a",
        "train-on-b",
        "train-spare-on-s",
    }
    text = (project.rendered() / "train-digits.stack.yaml").read_text()
    service = text[text.index("  train-spare-on-s:") :]
    assert '      KIT_SPARE: "1"\n' in service
    assert text.count("KIT_SPARE:") == 1
    assert train["train-spare-on-s"]["KIT_SPARE"] == "1"
    assert "KIT_SPARE" not in train["train-on-a"]
    assert (train["rendezvous"]["KIT_NNODES"], train["rendezvous"]["KIT_SPARES"]) == ("2:2", "1")


SHARED = [
    ("one job has it", {"j": ""}, {"j": "GPU-s0 GPU-s1"}),
    ("a job that does not name it", {"j": "{names: [a]}"}, {"j": ""}),
    ("a job that names it", {"j": "{names: [a, s]}"}, {"j": "GPU-s0 GPU-s1"}),
    (
        "jobs that share hosts",
        {"j": "{names: [a, s], gpus_per_host: 1}", "k": "{names: [b, s], gpus_per_host: 1}"},
        {"j": "GPU-s0", "k": "GPU-s1"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "wanted", "given"), SHARED)
def test_a_spare_goes_to_the_jobs_that_may_have_it(
    project: Project, name: str, wanted: dict[str, str], given: dict[str, str]
) -> None:
    plan = project.write(SPARES, with_hosts(wanted)).plan()
    found = {job.name: " ".join(" ".join(ids(each)) for each in job.spares) for job in plan.jobs}
    assert found == given


def test_a_model_in_parts_has_no_spare(project: Project) -> None:
    plan = project.write(SPARES, {"j": JOB + "parallel: {shard: 2}\n"}).plan()
    assert plan.jobs[0].spares == ()
    assert "s: no job uses this spare" in " ".join(plan.notes)


TWO_EACH = SPARES.replace("{uuid: GPU-a}", "{uuid: GPU-a}, {uuid: GPU-a1}").replace(
    ", {uuid: GPU-s1, use: spare}", ""
)
SPARES_WRONG = [
    ("half", SPARES.replace("GPU-s1, use: spare", "GPU-s1"), "", "a spare is a whole host"),
    ("alone", SPARES, "hosts: {names: [s]}\n", "all hosts that it names are spares"),
    ("small", SPARES, "hosts: {names: [a, s], gpus_per_host: 3}\n", "which has 1 for training"),
    ("few", TWO_EACH, "hosts: {names: [a, s], gpus_per_host: 2}\n", "s, which has 1 spare;"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "inventory", "hosts", "said"), SPARES_WRONG)
def test_a_spare_that_cannot_be_one_is_refused(
    project: Project, name: str, inventory: str, hosts: str, said: str
) -> None:
    result = project.write(inventory, {"j": JOB + hosts}).kit("plan")
    assert (result.status, said in result.err) == (2, True), result.err


def test_two_jobs_that_name_one_spare_are_refused(project: Project) -> None:
    hosts = {"i": "hosts: {names: [a, s]}\n", "j": "hosts: {names: [b, s]}\n"}
    result = project.write(SPARES, {name: JOB + each for name, each in hosts.items()}).kit("plan")
    said = "wants all spare GPUs of s, but GPU-s0 is already assigned to job i (jobs/i.yaml:7)"
    assert (result.status, said in result.err) == (2, True), result.err


def test_ranks_follow_the_inventory(project: Project) -> None:
    job = project.write(FOUR).plan().jobs[0]
    assert [(part.host.name, part.first_rank, part.processes) for part in job.placements] == [
        ("a", 0, 4),
        ("b", 4, 2),
        ("d", 6, 4),
    ]
    assert job.world_size == 10
    assert job.nodes == (3, 3)


def test_a_process_of_tensorflow_has_all_gpus_of_its_host(project: Project) -> None:
    written = COMMAND.replace("command:", "batch_size: 64\nframework: tensorflow\ncommand:")
    job = project.write(FOUR, {"j": written}).plan().jobs[0]
    found = [(part.first_rank, part.processes, len(part.gpus)) for part in job.placements]
    assert found == [(0, 1, 4), (1, 1, 2), (2, 1, 4)]
    assert job.world_size == 3
    assert job.batch.total == 64 * 10
    assert job.nodes == (3, 3)
    assert not [mount for mount in job.mounts if mount.target == "/dumps"]


def test_the_fewest_hosts_are_the_jobs_word(project: Project) -> None:
    assert project.write(FOUR, with_hosts({"j": "{min: 1}"})).plan().jobs[0].nodes == (1, 3)


def test_a_range_of_hosts_shares_what_is_written_once(project: Project) -> None:
    inventory = (
        "cluster: lab\nhosts:\n"
        '  "gpu[008-010]":\n'
        "    address: 10.0.0.254-10.0.1.0\n"
        '    ssh: "ops@gpu[8-10].lab:2222"\n'
        "    gpus: 2\n    speed: 25Gbit\n"
        '  "m[1-1]": {address: "10.9.0.[1-1]", roles: [manager]}\n'
    )
    hosts = project.write(inventory).plan().hosts
    assert [(host.name, host.address, host.ssh) for host in hosts] == [
        ("gpu008", "10.0.0.254", "ops@gpu8.lab:2222"),
        ("gpu009", "10.0.0.255", "ops@gpu9.lab:2222"),
        ("gpu010", "10.0.1.0", "ops@gpu10.lab:2222"),
        ("m1", "10.9.0.1", "10.9.0.1"),
    ]
    assert {len(host.gpus) for host in hosts[:3]} == {2}
    assert {host.speed for host in hosts[:3]} == {25 * 10**9}


def test_services_are_groups_of_equal_hosts(project: Project) -> None:
    inventory = FOUR.replace("  c: {address: 10.0.0.3}", "  c: {address: 10.0.0.3, gpus: 2}")
    jobs = {"j": JOB, "k": JOB + "hosts: {names: [c], gpus_per_host: 1}\n"}
    jobs["j"] += "hosts: {names: [a, b, d]}\n"
    project.write(inventory, jobs)
    assert [(*visible(each), *each.constraints) for each in working(project.stack(0))] == [
        ("train-4gpu", ("a", "d"), "all", "node.labels.kit.job.j == train-4gpu"),
        ("train-on-b", ("b",), "GPU-b0,GPU-b1", "node.labels.kit.job.j == train-on-b"),
    ]
    assert [visible(service) for service in working(project.stack(1))] == [
        ("train-gpu0", ("c",), "0")
    ]


def test_an_interface_of_its_own_gives_a_host_a_service_of_its_own(project: Project) -> None:
    inventory = FOUR.replace("gpus: 4, speed", "gpus: 4, interface: bond0.100, speed")
    inventory += "network: {driver: host, interface: eth0}\n"
    services = working(project.write(inventory).stack())
    interfaces = [{each.name: each.value for each in s.environment} for s in services]
    assert [
        (service.part.name, found["NCCL_SOCKET_IFNAME"])
        for service, found in zip(services, interfaces, strict=True)
    ] == [
        ("train-4gpu-bond0-100", "=bond0.100"),
        ("train-on-b", "=eth0"),
        ("train-4gpu", "=eth0"),
    ]


def test_ranges_of_hosts_can_say_what_each_gpu_is_for(project: Project) -> None:
    inventory = (
        "cluster: lab\nengine: swarm\nhosts:\n"
        '  "n[1-2]":\n    address: "10.0.0.[1-2]"\n    roles: [manager]\n'
        "    gpus: [{index: 2, model: L4}, {index: 0, use: none}, {index: 1, use: inference}]\n"
    )
    plan = project.write(inventory).plan()
    gpus = [(gpu.id, gpu.known, gpu.model, gpu.use) for gpu in plan.hosts[1].gpus]
    assert gpus == [("0", False, None, "none"), ("1", False, None, "inference"),
                    ("2", False, "L4", "training")]  # fmt: skip
    (service,) = working(project.stack())
    assert visible(service) == ("train-gpu2", ("n1", "n2"), "2")
    assert [ids(part) for part in plan.jobs[0].placements] == [("2",), ("2",)]


OWN_PORT = 29539  # 29400 + zlib.crc32(b"j") % 1000
ENGINES = [
    ("swarm", "overlay", "b", "train-j_rendezvous:29400", "node.role == manager", False),
    ("swarm", "host", "b", f"10.0.0.2:{OWN_PORT}", "node.labels.kit.host == b", True),
    ("compose", "overlay", "b", f"10.0.0.2:{OWN_PORT}", "", True),
    ("local", "overlay", "a", f"127.0.0.1:{OWN_PORT}", "", False),
]


@pytest.mark.parametrize(("engine", "driver", "host", "endpoint", "constraint", "shared"), ENGINES)
def test_hosts_meet(
    project: Project,
    engine: str,
    driver: str,
    host: str,
    endpoint: str,
    constraint: str,
    shared: bool,
) -> None:
    inventory = FOUR.replace("swarm", engine) + f"network: {{driver: {driver}}}\n"
    job = project.write(inventory, {"j": JOB}).workload()
    assert job.rendezvous is not None
    assert (job.rendezvous.host.name, job.rendezvous.endpoint) == (host, endpoint)
    assert job.host_network is shared
    if constraint:
        assert project.stack().services[0].constraints == (constraint,)


def test_one_host_by_compose_needs_no_network_of_its_own(project: Project) -> None:
    inventory = "cluster: lab\nengine: compose\nhosts:\n  a: {address: 10.0.0.1, gpus: 2}\n"
    job = project.write(inventory).workload()
    assert job.rendezvous is not None
    assert (job.host_network, job.rendezvous.endpoint) == (False, "rendezvous:29400")


def test_a_compose_job_meets_on_one_of_its_own_hosts(project: Project) -> None:
    jobs = with_hosts({"j": "{names: [a, d]}"})
    job = project.write(FOUR.replace("swarm", "compose"), jobs).workload()
    assert job.rendezvous is not None
    assert job.rendezvous.host.name == "a"  # the manager, b, has no part in it


def test_a_port_of_ones_own(project: Project) -> None:
    job = JOB + "rendezvous: {port: 31000}\n"
    rendezvous = project.write(FOUR, {"j": job}).workload().rendezvous
    assert rendezvous is not None
    assert rendezvous.port == 31000


def test_the_global_batch(project: Project) -> None:
    job = JOB.replace("batch_size: 64", "batch_size: 64\n  accumulation: 3\n  learning_rate: 0.2")
    plan = project.write(FOUR, {"j": job + "reference_batch: 480\n"}).plan()
    batch = plan.jobs[0].batch
    assert (batch.per_gpu, batch.accumulation, batch.total) == (64, 3, 64 * 10 * 3)
    assert batch.suggested_learning_rate == 0.8  # 1920 / 480 x 0.2
    assert plan.notes == (
        "j: the global batch is 1920, the reference batch 480; scaled linearly, the learning rate "
        "0.2 becomes 0.8 (Goyal et al. 2017, arXiv 1706.02677)",
    )


def test_a_global_batch_that_is_kept(project: Project) -> None:
    job = JOB.replace("batch_size: 64", "batch_size: 64\n  global_batch: 2000")
    batch = project.write(FOUR, {"j": job}).plan().jobs[0].batch
    assert (batch.per_gpu, batch.accumulation, batch.total) == (64, 4, 2000)
    said = (
        "batch       at most 64 per GPU × 10 processes × 4 accumulation steps = 2,000 global, with"
    )
    assert f"{said} any number of hosts" in project.kit("plan").out


@pytest.mark.parametrize(("size", "idle"), [(7, 3), (10, 0)])
def test_gpus_without_a_sample_are_noted(project: Project, size: int, idle: int) -> None:
    job = JOB.replace("batch_size: 64", f"batch_size: 64\n  global_batch: {size}")
    said = f"j: a step has 7 samples, so {idle} of 10 GPUs have none; `global_batch: 10` gives"
    notes = project.write(FOUR, {"j": job}).plan().notes
    assert [note.startswith(said) for note in notes] == [True] * bool(idle)


def test_a_rate_that_follows_the_batch(project: Project) -> None:
    job = JOB.replace("batch_size: 64", "batch_size: 64\n  learning_rate: 0.2\n  rate_batch: 320")
    plan = project.write(FOUR, {"j": job + "reference_batch: 480\n"}).plan()
    batch = plan.jobs[0].batch
    assert (batch.total, batch.learning_rate, batch.suggested_learning_rate) == (640, 0.4, None)


@pytest.mark.parametrize("change", ["optimizer: adam", "batch_size: 6400"])
def test_linear_scaling_is_suggested_within_its_limits(project: Project, change: str) -> None:
    job = JOB.replace("  batch_size: 64\n", "") + "reference_batch: 64\n"
    train = change if "batch_size" in change else f"{change}\n  batch_size: 64"
    plan = project.write(FOUR, {"j": job.replace("train:\n", f"train:\n  {train}\n")}).plan()
    assert plan.jobs[0].batch.suggested_learning_rate is None
    assert len(plan.notes) == 1
    assert "linear" not in plan.notes[0]


def test_the_reference_batch_itself_needs_no_note(project: Project) -> None:
    plan = project.write(FOUR, {"j": JOB + "reference_batch: 640\n"}).plan()
    assert (plan.notes, plan.jobs[0].batch.suggested_learning_rate) == ((), None)


def test_a_command_tells_its_batch(project: Project) -> None:
    plan = project.write(FOUR, {"j": COMMAND + "batch_size: 5\nreference_batch: 100\n"}).plan()
    assert plan.jobs[0].batch.total == 50
    assert plan.notes == ("j: the global batch is 50, the reference batch 100",)


def test_a_command_may_keep_its_numbers_to_itself(project: Project) -> None:
    job = project.write(FOUR, {"j": COMMAND}).plan().jobs[0]
    assert job.batch.total is None
    assert job.traffic.gradient_bytes is None
    assert job.traffic.seconds is None


def test_the_slowest_link_counts(project: Project) -> None:
    job = project.write(FOUR, {"j": COMMAND + "parameters: 1000000\n"}).plan().jobs[0]
    assert job.traffic.gradient_bytes == 4_000_000
    assert (job.traffic.slowest_host, job.traffic.speed) == ("b", 10**9)
    # 10 ranks: each sends 2 x 9/10 of 32 Mbit over 1 Gbit/s.
    assert job.traffic.seconds == pytest.approx(0.0576)


def test_one_host_uses_no_link(project: Project) -> None:
    jobs = with_hosts({"j": "{names: [a]}"}, COMMAND + "parameters: 1000000\n")
    traffic = project.write(FOUR, jobs).plan().jobs[0].traffic
    assert (traffic.gradient_bytes, traffic.seconds, traffic.slowest_host) == (
        4_000_000,
        None,
        None,
    )


MANAGERS = [
    (1, []),
    (2, ["2 managers survive the loss of 0, as 1 do: make it an odd number"]),
    (3, []),
    (4, ["4 managers survive the loss of 1, as 3 do: make it an odd number"]),
]


@pytest.mark.parametrize(("managers", "notes"), MANAGERS)
def test_an_even_number_of_managers_is_noted(
    project: Project, managers: int, notes: list[str]
) -> None:
    inventory = (
        "cluster: lab\nengine: swarm\nhosts:\n"
        f'  "m[1-{managers}]": {{address: "10.0.0.[1-{managers}]", roles: [manager], gpus: 1}}\n'
    )
    assert list(project.write(inventory).lowered().notes) == notes


def test_one_host_without_a_role_is_no_even_number(project: Project) -> None:
    inventory = "cluster: lab\nengine: swarm\nhosts:\n  a: {address: 10.0.0.1, gpus: 1}\n"
    assert project.write(inventory).lowered().notes == ()


def test_a_secret_in_the_environment_is_noted(project: Project) -> None:
    job = JOB + "environment: {WANDB_API_KEY: x, TOKENIZERS_PARALLELISM: 'false', hf_token: y}\n"
    assert project.write(jobs={"j": job}).lowered().notes == (
        "j: WANDB_API_KEY looks like a secret, and the rendered files hold it in plain text",
        "j: hf_token looks like a secret, and the rendered files hold it in plain text",
    )


def test_variables_of_the_job_win(project: Project) -> None:
    inventory = INVENTORY.replace(
        "{speed: 1Gbit}", "{nccl: {NCCL_DEBUG: INFO, NCCL_IB_DISABLE: 1}}"
    )
    # An older name of a variable that kit sets under its newer one.
    old = "TORCH_NCCL_TRACE_BUFFER_SIZE"
    job = JOB + f"nccl: {{NCCL_DEBUG: TRACE}}\nenvironment: {{LEVEL: 7, {old}: 9}}\n"
    (part, *_) = project.write(inventory, {"j": job}).workload().working
    variables = {each.name: each.value for each in part.environment}
    assert variables["NCCL_DEBUG"] == "TRACE"
    assert variables["NCCL_IB_DISABLE"] == "1"
    assert variables["LEVEL"] == "7"
    assert (variables[old], "TORCH_FR_BUFFER_SIZE" in variables) == ("9", False)


def test_infiniband_lifts_the_limit_on_locked_memory(project: Project) -> None:
    inventory = INVENTORY.replace("{speed: 1Gbit}", "{driver: host, infiniband: true}")
    jobs = {
        "a": JOB + "hosts: {names: [pc1]}\n",
        "b": JOB + "hosts: {names: [pc2]}\nlimits: {memlock: 64MiB}\n",
    }
    assert [job.memlock for job in project.write(inventory, jobs).plan().jobs] == [-1, 2**26]


def test_storage_of_a_job(project: Project) -> None:
    job = JOB + 'mounts: [{nfs: "nas:/ckpt", to: /checkpoints}, {bind: /srv, to: /data}]\n'
    shared, own = (
        project.write(jobs={"j": text}).plan().jobs[0]
        for text in (job, JOB.replace("digits", "mnist"))
    )
    assert shared.shared_checkpoints
    assert {mount.target for mount in shared.mounts} == {"/checkpoints", "/data", "/dumps"}
    assert [(volume.nfs_address, volume.nfs_path) for volume in shared.volumes] == [
        (None, None),
        ("nas", "/ckpt"),
    ]
    assert not own.shared_checkpoints
    assert [volume.name for volume in own.volumes] == [
        "kit-lab_data",
        "kit-lab_j-checkpoints",
        "kit-lab_j-dumps",
    ]


def test_two_exports_are_two_volumes(project: Project) -> None:
    job = JOB + 'mounts: [{nfs: "nas:/a/b", to: /x}, {nfs: "nas:/a-b", to: /y}]\n'
    volumes = project.write(jobs={"j": job}).plan().jobs[0].volumes
    paths = {volume.name: volume.nfs_path for volume in volumes if volume.nfs_address}
    assert sorted(str(path) for path in paths.values()) == ["/a-b", "/a/b"]


TABLE = """\
lab  engine swarm, 2 hosts, 3 GPUs, 2 for training
job digits  cnn on digits, 10 epochs
  batch       64 per GPU × 2 processes × 1 accumulation step = 128 global
  gradients   53,002 parameters, 0.2 MB a step: 1.7 ms by ring all-reduce over 1Gbit
  coordinator train-digits_rendezvous:29400 on pc1; 2 hosts, all needed
note  digits: the global batch is 128, the reference batch 64; scaled linearly, the learning rate \
0.1 becomes 0.2 (Goyal et al. 2017, arXiv 1706.02677)
"""


def test_the_table_says_what_matters(project: Project) -> None:
    result = project.write(
        jobs={"digits": JOB + "  learning_rate: 0.1\nreference_batch: 64\n"}
    ).kit("plan")
    assert (result.status, result.err) == (0, "")
    for line in TABLE.splitlines():
        assert line in result.out.splitlines()
    assert "GPU-b" in result.out


def test_a_thousand_equal_hosts_are_a_line(project: Project) -> None:
    inventory = (
        "cluster: lab\nengine: swarm\nhosts:\n"
        '  "m[1-3]": {address: "10.1.0.[1-3]", roles: [manager]}\n'
        '  "gpu[0001-1000]": {address: 10.0.0.1-10.0.3.232, gpus: 8}\n'
    )
    for job in (JOB, JOB + "hosts: {gpus_per_host: 1}\n"):
        result = project.write(inventory, {"j": job}).kit("plan")
        assert len(result.out.splitlines()) < 25
        assert "gpu0001 … gpu1000 (1000)" in result.out


def test_a_command_with_brackets_is_shown_as_it_is(project: Project) -> None:
    job = COMMAND.replace('"50", "10"', "'data=[/srv/a,/srv/b]', '[bold]'")
    result = project.write(jobs={"j": job}).kit("plan")
    assert (result.status, result.err) == (0, "")
    assert "data=[/srv/a,/srv/b]" in result.out
    assert "[bold]" in result.out


SECONDS = [(1_000, "0.064 ms"), (15_620_000, "1 s"), (10**12, "64,000 s")]


@pytest.mark.parametrize(("parameters", "shown"), SECONDS)
def test_times_are_readable(project: Project, parameters: int, shown: str) -> None:
    job = COMMAND + f"parameters: {parameters}\n"
    inventory = INVENTORY.replace("{speed: 1Gbit}", "{speed: 500Mbit}")
    assert f": {shown} by ring" in project.write(inventory, {"j": job}).kit("plan").out


def test_no_jobs_are_a_plan_too(project: Project) -> None:
    result = project.write(jobs={}).kit("plan")
    assert (result.status, result.err) == (0, "")
    assert "no jobs: describe one in jobs/<name>.yaml" in result.out


def test_the_plan_as_json_is_the_rendered_one_and_more(project: Project) -> None:
    tree = project.write().rendered()
    plan = json.loads(project.kit("plan", "--json").out)
    hosts = plan["jobs"][0]["hosts"]
    assert [host.pop("first_rank") for host in hosts] == [0, 1]
    assert plan["jobs"][0]["world_size"] == 2
    assert plan["jobs"][0].pop("exchange")["assumed"] is True
    assert plan["jobs"][0].pop("prediction") is None  # No step was measured.
    assert plan == json.loads((tree / "plan.json").read_text())


SIXTY_FOUR = """\
cluster: lab
engine: swarm
hosts:
  m: {address: 10.1.0.1, roles: [manager]}
""" + "".join(
    f"  gpu{i:02}: {{address: 10.0.0.{i}, gpus: [{{uuid: GPU-{i}-0}}, {{uuid: GPU-{i}-1}}]}}\n"
    for i in range(1, 65)
)


def changed_lines(project: Project, before: str, after: str) -> dict[str, int]:
    project.write(before)
    old = snapshot(project.rendered())
    project.write(after)
    new = snapshot(project.rendered())
    counts = {}
    for path in {**old, **new}:
        first, second = ((tree.get(path) or b"").decode().splitlines() for tree in (old, new))
        diff = difflib.unified_diff(first, second, n=0, lineterm="")
        counts[path] = sum(line[0] in "+-" and line[:3] not in {"+++", "---"} for line in diff)
    return {path: count for path, count in counts.items() if count}


def test_one_split_gpu_of_64_hosts_is_a_small_diff(project: Project) -> None:
    split = SIXTY_FOUR.replace("{uuid: GPU-40-1}", "{uuid: GPU-40-1, use: inference}")
    changed = changed_lines(project, SIXTY_FOUR, split)
    assert changed["plan.json"] <= 12
    assert changed["train-digits.stack.yaml"] <= 12
    assert set(changed) == {"plan.json", "train-digits.stack.yaml"}


def test_one_more_host_is_a_small_diff(project: Project) -> None:
    more = SIXTY_FOUR + "  gpu65: {address: 10.0.0.65, gpus: [{uuid: GPU-x}, {uuid: GPU-y}]}\n"
    changed = changed_lines(project, SIXTY_FOUR, more)
    assert changed["plan.json"] <= 14
    assert changed["label-nodes.sh"] == 1
    assert changed["train-digits.stack.yaml"] <= 30  # A service; two lines are hashes.
    assert changed[".kit-manifest"] == 2
    assert set(changed) == {
        ".kit-manifest",
        "hosts/gpu65/daemon.json",
        "hosts/gpu65/prepare.sh",
        "label-nodes.sh",
        "plan.json",
        "train-digits.stack.yaml",
    }


OWN = "image: i\ncommand: [ddp.py]\nmounts: [{bind: /srv/ddp, to: /workspace%s}]\n"


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (OWN % "", True),
        (OWN % ", read_only: true", False),
        (OWN % "" + "checkpoint: {files: [snapshot.pt]}\n", False),
        (OWN % "" + "hosts: {names: [pc2]}\n", False),
        (OWN.replace("bind: /srv/ddp", 'nfs: "192.168.8.1:/srv/ddp"') % "", False),
    ],
    ids=["each-host-its-own", "only-read", "named", "one-host", "shared"],
)
def test_a_script_that_may_save_on_each_host_apart_is_told(
    project: Project, job: str, *, told: bool
) -> None:
    notes = project.write(jobs={"j": job}).lowered().notes
    assert [note.startswith("j: /srv/ddp is a different folder on each of") for note in notes] == (
        [True] if told else []
    )


INTERFACES = """\
cluster: lab
engine: swarm
hosts:
  m: {address: 10.0.0.9, roles: [manager]}
  a: {address: 10.0.0.1, gpus: 1, interface: eth0.1}
  b: {address: 10.0.0.2, gpus: 1, interface: eth0-1}
  c: {address: 10.0.0.3, gpus: 1, interface: eth0_1}
  d: {address: 10.0.0.4, gpus: 1, interface: auto}
  e: {address: 10.0.0.5, gpus: 1, interface: ib0}
  f: {address: 10.0.0.6, gpus: 1}
network: {driver: host, interface: ib0}
"""


def test_each_interface_has_a_service_of_its_own(project: Project) -> None:
    stack = project.write(INTERFACES).stack()
    found = {
        tuple(host.name for host in service.part.hosts): {
            str(variable.value).removeprefix("=")
            for variable in service.environment
            if variable.name.endswith("_SOCKET_IFNAME")
        }
        for service in working(stack)
    }
    # A host's own auto is not the network's ib0, and no name either.
    assert list(found) == [("a",), ("b",), ("c",), ("d",), ("e", "f")]
    assert found["d",] == set()
    assert [found[name,] for name in "abc"] == [{"eth0.1"}, {"eth0-1"}, {"eth0_1"}]


def test_auto_for_a_host_is_what_the_network_says_already(project: Project) -> None:
    inventory = INTERFACES.replace("interface: ib0", "interface: auto")
    names = [service.part.name for service in working(project.write(inventory).stack())]
    assert names[-1] == "train-1gpu"
    assert len(names) == 4


SIX = """\
cluster: lab
engine: compose
hosts:
  a: {address: "FD00::1", ssh: "u@fd00::1", roles: [manager], gpus: [{index: 0}, {index: 1, use: inference}]}
  b: {address: "fd00::2", gpus: 1}
network: {driver: host}
"""  # noqa: E501


def test_ipv6_stands_in_brackets_where_a_port_follows(project: Project) -> None:
    lowered = project.write(SIX, servers={"digits": SERVER}).lowered()
    job, server = lowered.workloads
    assert job.rendezvous is not None
    assert job.rendezvous.endpoint == f"[fd00::1]:{job.rendezvous.port}"
    assert server.urls == ("http://[fd00::1]:8080",)
    assert server.sources == ("http://[fd00::1]:8081", "http://[fd00::2]:8081")
    assert [host.ssh for host in lowered.plan.hosts] == ["u@[fd00::1]", "[fd00::2]"]
    assert (
        f'KIT_RENDEZVOUS: "{job.rendezvous.endpoint}"'
        in (project.rendered() / "hosts/b/train-digits.compose.yaml").read_text()
    )


def test_a_swarm_by_ipv6_is_refused_at_its_line(project: Project) -> None:
    result = project.write(SIX.replace("compose", "swarm")).kit("plan")
    assert result.status == 2
    assert result.err.splitlines() == [
        f"inventory.yaml:{line}: hosts.{name}.address: fd00::{number} is an IPv6 address, but "
        "kit's Swarms need IPv4; write its IPv4 address, or `engine: compose`"
        for line, name, number in ((4, "a", 1), (5, "b", 2))
    ]


@pytest.mark.parametrize("second", ["MIG-2", "GPU-2"])
def test_a_mig_instance_comes_alone(project: Project, second: str) -> None:
    inventory = INVENTORY.replace("{uuid: GPU-c, use: inference}", f"{{uuid: {second}}}")
    inventory = inventory.replace("GPU-b", "MIG-1")
    result = project.write(inventory).kit("plan")
    assert (result.status, result.err) == (
        2,
        f"jobs/digits.yaml:1: hosts: pc2 has MIG-1, {second} for one container, but CUDA "
        "shows only one MIG instance; write `hosts: {gpus_per_host: 1}`, and more jobs for more "
        "instances\n",
    )
    share = JOB + "hosts: {names: [pc2], gpus_per_host: 1}\n"
    placements = [
        job.placements for job in project.write(inventory, {"a": share, "b": share}).plan().jobs
    ]
    assert [[gpu.id for gpu in each.gpus] for (each,) in placements] == [["MIG-1"], [second]]


def test_one_gpu_of_one_host_changes_the_files_that_depend_on_it(project: Project) -> None:
    jobs = {
        "a": JOB + 'hosts: {names: ["gpu[01-32]"]}\n',
        "b": JOB + 'hosts: {names: ["gpu[33-64]"]}\n',
    }
    project.write(SIXTY_FOUR, jobs)
    old = snapshot(project.rendered())
    project.write(SIXTY_FOUR.replace("GPU-40-1", "GPU-new"), jobs)
    new = snapshot(project.rendered())
    changed = {path for path in {**old, **new} if old.get(path) != new.get(path)}
    assert changed == {"hosts/gpu40/daemon.json", "plan.json", "train-b.stack.yaml"}


def test_a_dev_shm_that_the_memory_limit_does_not_allow_is_noted(project: Project) -> None:
    assert not project.write(jobs={"j": JOB + "limits: {memory: 16GiB}\n"}).plan().notes
    (note,) = project.write(jobs={"j": JOB + "limits: {memory: 8GiB}\n"}).plan().notes
    assert note.startswith("j: limits.shared_memory is 16GiB, limits.memory 8GiB: ")


def test_where_the_metrics_of_an_overlay_are_is_noted(project: Project) -> None:
    job = JOB + "metrics: {port: 9500}\n"
    (note,) = project.write(jobs={"j": job}).lowered().notes
    assert note == (
        "j: its metrics are on port 9500 of the network lab-training, not of the hosts: let "
        "Prometheus join the network, and look up tasks.train-j_train-on-pc1"
    )
    host = INVENTORY.replace("{speed: 1Gbit}", "{driver: host}")
    assert not project.write(host, {"j": job}).lowered().notes


def test_gpus_of_a_range_of_hosts(project: Project) -> None:
    hosts = '  "x[1-3]": {address: "10.0.0.[1-3]", roles: [manager], gpus: 2}\n'
    inventory = f"cluster: lab\nengine: local\nhosts:\n{hosts}"
    job = 'hosts: {gpus: {"x[1-2]": [1], x1: [0]}}\n'
    plan = project.write(inventory, {"j": JOB + job}).kit("plan", "--json")
    assert plan.status == 0, plan.err
    (found,) = json.loads(plan.out)["jobs"]
    assert {each["host"]: each["devices"] for each in found["hosts"]} == {"x1": ["0"], "x2": ["1"]}
    project.write(inventory, {"j": JOB + 'hosts: {gpus: {"x[1-2]": [7]}}\n'})
    assert "hosts.gpus.x[1-2]" in project.kit("plan").err
