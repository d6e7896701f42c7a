"""Sessions: what is rendered for them, and the entry with which ssh finds them."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from kit.commands import deploy, job_file, session, session_start, stop
from kit.runtime.history import Deployment, current_user
from kit.runtime.status import JobStatus, SessionStatus, State
from kit.runtime.target import Known
from kit.session.entry import Entry, alias_of, included, remove, write
from kit.session.keys import private_files, public_keys
from kit.workload.types import Kind
from tests.sandbox import INVENTORY, JOB, Project

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHc0Yz2jSg3s1J0q2wqWQYxkqv4uUqXW0k9yK0m0b0aZ anna@laptop"
SESSION = f"""\
image: research:1
session: {{keys: ["{KEY}"]}}
hosts: {{names: [pc2], gpus_per_host: 1}}
max_duration: 8h
idle: 1h
"""


@pytest.mark.parametrize("engine", ["compose", "swarm"])
def test_a_session_is_one_container_with_a_home(project: Project, engine: str) -> None:
    project.write(INVENTORY.replace("engine: swarm", f"engine: {engine}"), {"anna": SESSION})
    result = project.kit("render")
    assert result.status == 0, result.err
    (tree,) = (project.folder / "compose").iterdir()
    (file,) = tree.rglob("train-anna.*.yaml")
    content = yaml.safe_load(file.read_text())
    ((_, service),) = content["services"].items()
    mounts = {mount["target"]: mount.get("source", "") for mount in service["volumes"]}
    assert mounts["/root"].endswith("_anna-home")
    assert "/checkpoints" not in mounts
    assert not service.get("ports")
    assert "KIT_RENDEZVOUS" not in service["environment"]
    text = (tree / "jobs" / "anna.json").read_text()
    assert '"max_duration": 28800' in text
    assert KEY in text
    plan = project.kit("plan").out
    assert "job anna  a session for 8 h, or until unused for 60 min" in plan
    assert "home        /root" in plan


def test_a_session_has_a_coordinator_only_to_notify(project: Project) -> None:
    project.write(INVENTORY, {"anna": SESSION + "notify: [{url: 'http://hooks.lab/a'}]\n"})
    result = project.kit("render")
    assert result.status == 0, result.err
    (file,) = project.folder.rglob("train-anna.stack.yaml")
    services = yaml.safe_load(file.read_text())["services"]
    coordinator = services.pop("rendezvous")
    assert coordinator["command"] == ["coordinator"]
    assert "hooks.lab" in coordinator["environment"]["KIT_NOTIFY"]
    ((_, service),) = services.items()
    assert "rendezvous:29400" in service["environment"]["KIT_RENDEZVOUS"]


def test_this_machine_has_no_sessions(project: Project) -> None:
    project.write(INVENTORY.replace("engine: swarm", "engine: local"), {"anna": SESSION})
    result = project.kit("render")
    assert result.status == 2
    assert "jobs/anna.yaml:2: session: a session is a container, and engine local has none" in (
        result.err
    )


def test_a_session_beside_jobs_gets_only_what_is_free(project: Project) -> None:
    every = SESSION.replace("{names: [pc2], gpus_per_host: 1}", "{names: [pc1, pc2]}")
    project.write(INVENTORY, {"anna": every})
    result = project.kit("render")
    assert result.status == 2
    assert "a session is on one host, this one on 2; write `hosts: {names: [pc1]}`" in result.err


def test_a_session_without_an_image_or_with_a_name_that_is_taken(project: Project) -> None:
    project.write(INVENTORY, {"anna": SESSION})
    result = project.kit("session", "start", "--name", "anna")
    assert result.status == 2
    assert "jobs/anna.yaml was not written by kit session start" in result.err
    (project.folder / "jobs" / "anna.yaml").unlink()
    result = project.kit("session", "start", "--name", "bob")
    assert "there is no image\nname one, as in `--image IMAGE`" in result.err
    result = project.kit("session", "start", "--name", "bob", "--host", "pc9", "--image", "r:1")
    assert (result.status, "pc9 is not in the inventory" in result.err) == (2, True)
    result = project.kit("session", "start", "--name", "bob", "--idle", "soon", "--image", "r:1")
    assert (result.status, "or never" in result.err) == (2, True)
    assert list((project.folder / "jobs").iterdir()) == []


def test_ssh_reads_the_entry(tmp_path: Path) -> None:
    alias = alias_of("lab", "anna")
    program = ("/opt/my python", "-m", "kit", "session", "connect")
    proxy = (*program, "-i", "/srv/100%/i.yaml", "anna")
    entry = Entry(alias, "root", "ssh-ed25519 AAAA", proxy, [tmp_path / "a key"])
    file = write(entry, tmp_path)
    ssh = shutil.which("ssh")
    assert ssh is not None
    shown = subprocess.run(
        [ssh, "-G", "-F", str(file), alias], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "user root" in shown
    assert "stricthostkeychecking true" in shown
    assert "identitiesonly yes" in shown
    assert f"identityfile {tmp_path / 'a key'}" in shown
    (command,) = (line for line in shown if line.startswith("proxycommand "))
    words = "'/opt/my python' -m kit session connect -i /srv/100%%/i.yaml anna"
    assert command == f"proxycommand {words}"
    assert (file.parent / f"{alias}.key").read_text() == f"{alias} ssh-ed25519 AAAA\n"
    assert not included(tmp_path)
    (tmp_path / ".ssh" / "config").write_text("Host a\n  User b\ninclude kit/*.conf\n")
    assert included(tmp_path)
    remove(alias, tmp_path)
    remove(alias, tmp_path)
    assert list(file.parent.iterdir()) == []


def test_the_users_public_keys(tmp_path: Path) -> None:
    folder, said = tmp_path / ".ssh", list[str]()
    folder.mkdir()
    for name in ("id_ed25519", "id_rsa"):
        kind = name.removeprefix("id_")
        subprocess.run(["ssh-keygen", "-qt", kind, "-N", "", "-f", folder / name], check=True)
    (folder / "id_ed25519-cert.pub").write_text("ssh-ed25519-cert-v01@openssh.com AAAA me\n")
    (folder / "id_ecdsa.pub").touch()
    found = public_keys(tmp_path, said.append)
    assert [line.split()[0] for line in found] == ["ssh-ed25519", "ssh-rsa"]
    assert said == [f"note: {folder / 'id_ecdsa.pub'} is not one public SSH key: it is left out"]
    (folder / "id_rsa").unlink()
    given = [folder / "id_ed25519.pub", folder / "id_rsa.pub", folder / "key"]
    assert private_files(given) == [folder / "id_ed25519"]
    with contextlib.chdir(folder):
        assert private_files([Path("id_ed25519.pub")]) == [folder / "id_ed25519"]


def state(
    name: str, state: State = State.RUNNING, *, kind: Kind = Kind.JOB, session: bool = True
) -> JobStatus:
    own = SessionStatus(0.0, 0, 0.0, 0.0, "", "", "") if session else None
    return JobStatus(name, kind, state, "", 0.0, None, (), None, None, session=own)


class There:
    """A target with some jobs; all were deployed by `by`."""

    tied_to_terminal = False

    def __init__(self, *statuses: JobStatus, by: str = current_user()) -> None:
        self.jobs = {each.job: each for each in statuses}
        self.by, self.stopped = by, list[str]()

    def status(self) -> tuple[JobStatus, ...]:
        return tuple(self.jobs.values())

    def known(self) -> dict[str, Known]:
        return {name: Known(each.kind, ()) for name, each in self.jobs.items()}

    def history(self) -> tuple[Deployment, ...]:
        return tuple(Deployment(name, 1.0, self.by, "", "", "") for name in self.jobs)

    def queue(self) -> None:
        """It has none."""

    def stop(self, name: str) -> JobStatus:
        self.stopped.append(name)
        return self.jobs[name]


@pytest.fixture
def there(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[[There], There]:
    def use(target: There) -> There:
        for module in (job_file, session, session_start, stop):
            monkeypatch.setattr(module, "target_of", lambda *_: target)
        return target

    project.write(INVENTORY, {"anna": SESSION, "digits": f"{JOB}hosts: {{names: [pc1]}}\n"})
    return use


@pytest.mark.parametrize(
    ("target", "name", "said"),
    [
        (There(state("digits", session=False)), "digits", "`kit stop digits` ends it"),
        (There(state("serve-a", kind=Kind.SERVER, session=False)), "serve-a", "is not a session"),
        (There(), "bob", "session bob is not deployed"),
        (There(state("anna"), by="ben@pc9"), "anna", "ben@pc9 has started session anna on"),
    ],
)
def test_only_the_own_session_is_stopped(
    project: Project, there: Callable[[There], There], target: There, name: str, said: str
) -> None:
    there(target)
    result = project.kit("session", "stop", name)
    assert (result.status, said in result.err) == (2, True), result.err
    assert target.stopped == []


def test_a_session_that_a_person_has_written_keeps_its_file(
    project: Project, there: Callable[[There], There]
) -> None:
    target = there(There(state("anna")))
    assert "jobs/anna.yaml is yours" in project.kit("session", "stop", "anna").out
    assert target.stopped == ["anna"]


def test_an_open_session_is_not_replaced(project: Project, there: Callable[[There], There]) -> None:
    there(There(state("bob")))
    (project.folder / "jobs" / "anna.yaml").unlink()
    result = project.kit("session", "start", "--name", "bob", "--image", "r:1", "--host", "pc2")
    assert (result.status, "`kit session extend bob --hours 4`" in result.err) == (2, True)
    assert not (project.folder / "jobs" / "bob.yaml").exists()


def test_all_that_are_not_named_leave_sessions_alone(
    project: Project, there: Callable[[There], There]
) -> None:
    target = there(There(state("anna"), state("digits", session=False)))
    result = project.kit("stop")
    assert target.stopped == ["digits"]
    assert "anna continues: `kit stop anna` ends it" in result.out
    result = project.kit("stop", "anna")
    assert "`kit deploy anna` starts the session again; its home stays" in result.out
    project.rendered()
    lowered = project.lowered()
    assert [each.name for each in deploy._chosen(lowered, [], queued=False)] == ["digits"]
    assert [each.name for each in deploy._chosen(lowered, ["anna"], queued=False)] == ["anna"]
