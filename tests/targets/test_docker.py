"""The way to a host's engine, through an `ssh` and a `docker` that stay on this machine."""

from __future__ import annotations

import dataclasses
import os
import sys
from http.client import HTTPConnection
from pathlib import Path
from unittest import mock

import pytest

from kit.errors import KitError
from kit.hosts import ssh
from kit.hosts.connection import EngineError
from kit.hosts.docker import Docker, engine_url
from kit.model import Host
from kit.targets.swarm import execute

HOST = Host("n1", "10.0.0.1", "me@n1", (), (), None, 10**9, ("hosts", "n1"))
ENGINE = f"""#!{sys.executable}
import sys
answers = 0
while sys.stdin.buffer.readline().strip():
    while sys.stdin.buffer.readline().strip():
        pass
    answers += 1
    sys.stdout.write(f"HTTP/1.1 200 OK\\r\\nContent-Length: 1\\r\\n\\r\\n{{answers}}")
    sys.stdout.flush()
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`ssh` runs its words here and notes each call; `docker` answers by counting requests."""
    programs, calls = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    calls.write_text("")
    shell = 'while [ "$1" != -- ]; do shift; done\nshift 2\nexec sh -c "$*"\n'
    for name, text in (
        ("ssh", f"#!/bin/sh\necho call >>{calls}\n{shell}"),
        ("docker", ENGINE),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return calls


@pytest.mark.parametrize(
    ("login", "url", "words"),
    [
        ("ops@4090", "ssh://ops@4090", ["--", "ops@4090"]),
        ("lab_gpu1:2222", "ssh://lab_gpu1:2222", ["-p", "2222", "--", "lab_gpu1"]),
        ("[fe80::1%eth0]", "ssh://[fe80::1%25eth0]", ["--", "fe80::1%eth0"]),
        ("LAB\\me@gpu1", "ssh://LAB%5Cme@gpu1", ["--", "LAB\\me@gpu1"]),
    ],
)
def test_an_engine_of_any_login_is_a_url_of_docker(login: str, url: str, words: list[str]) -> None:
    """docker decodes the URL for its own ssh; kit's ssh gets the login itself."""
    assert engine_url(login) == url
    assert ssh.command(login)[-len(words) :] == words


def test_after_ctrl_c_the_cleanup_still_reaches_the_engine(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = Docker.of(HOST)
    assert docker.get("/info") == 1
    with monkeypatch.context() as patched:
        patched.setattr(HTTPConnection, "getresponse", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            docker.get("/tasks")
    # The answer of a new connection, not that of the request before.
    assert docker.request("DELETE", "/configs/lock") == 1
    docker.close()


def test_podman_in_dockers_place_is_named(calls: Path, tmp_path: Path) -> None:
    """What podman-docker 4.9 prints."""
    (tmp_path / "bin" / "docker").write_text(
        "#!/bin/sh\n"
        "echo 'Emulate Docker CLI using podman.' >&2\n"
        "echo 'Error: failed to open connection to podman: dial unix /run/user/1000/podman/podman"
        ".sock: connect: no such file or directory' >&2\nexit 125\n"
    )
    with pytest.raises(KitError, match="the docker command there is Podman") as error:
        Docker.of(HOST).get("/info")
    assert error.value.hint == "kit doctor n1 says what to do"


def test_podman_on_the_operators_machine_is_named(calls: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "docker").write_text(
        "#!/bin/sh\n"
        "echo 'Emulate Docker CLI using podman.' >&2\n"
        "echo \"Error: unknown shorthand flag: 'H' in -H\" >&2\n"
        "echo \"See 'podman --help'\" >&2\nexit 125\n"
    )
    with pytest.raises(KitError, match="n1: start digits: the docker command of this machine is"):
        Docker.of(HOST).command("start digits", "compose", "up")


def test_requests_share_a_connection(calls: Path) -> None:
    docker = Docker.of(HOST)
    assert [docker.get("/info"), docker.get("/nodes"), docker.read("/logs")] == [1, 2, b"3"]
    assert calls.read_text() == "call\n"
    docker.close()


@pytest.mark.parametrize("printed", ["", "one line\n", "{}\n" * 50_000, "ä 'quoted' \\ $HOME\n"])
def test_a_prelude_comes_with_the_connection(calls: Path, tmp_path: Path, printed: str) -> None:
    file = tmp_path / "said"
    file.write_text(printed)
    docker = Docker.of(HOST, f"cat {file}")
    assert [docker.get("/info"), docker.get("/nodes")] == [1, 2]
    assert docker.prelude_output == printed
    assert calls.read_text() == "call\n"
    docker.close()


def test_a_prelude_that_fails_keeps_nobody_from_the_engine(calls: Path) -> None:
    docker = Docker.of(HOST, "cd /nowhere/at/all 2>/dev/null || exit 0; echo never")
    assert docker.get("/info") == 1
    assert docker.prelude_output == ""
    docker.close()


def test_a_host_that_hangs_up_is_told(calls: Path, tmp_path: Path) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text("#!/bin/sh\necho 'no route to host' >&2\nexit 255\n")
    with pytest.raises(KitError, match="n1: Docker cannot be reached: no route to host"):
        Docker.of(HOST, "true").get("/info")


def test_docker_reads_files_in_a_clean_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\nexec env\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name in ("HTTPS_PROXY", "COMPOSE_FILE", "KIT_SECRET_TOKEN"):
        monkeypatch.setenv(name, "http://operator:password@proxy")
    monkeypatch.setenv("DOCKER_CONFIG", "/mine")
    seen = Docker("here", None).command("tell", env={"KIT_SECRET_KEY": "0a1b"}).splitlines()
    assert not [line for line in seen if "password" in line]
    assert {"DOCKER_CONFIG=/mine", "KIT_SECRET_KEY=0a1b"} <= set(seen)


REFUSING = f"""#!{sys.executable}
import sys
refused = 0
while sys.stdin.buffer.readline().strip():
    size = 0
    while line := sys.stdin.buffer.readline().strip().lower():
        size = int(line.split()[1]) if line.startswith(b"content-length:") else size
    sys.stdin.buffer.read(size)
    refused += 1
    fault = b'{{"message": "dial tcp 10.0.0.2:2377: connect: connection refused"}}'
    status, body = ("200 OK", b"{{}}") if refused > TIMES else ("503 Unavailable", fault)
    head = f"HTTP/1.1 {{status}}\\r\\nContent-Length: {{len(body)}}\\r\\n\\r\\n"
    sys.stdout.buffer.write(head.encode() + body)
    sys.stdout.flush()
"""


@pytest.mark.parametrize("times", [2, 10**6])
def test_a_host_joins_a_manager_that_has_just_begun(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(execute, "LISTENING", 2.0)
    (tmp_path / "bin" / "docker").write_text(REFUSING.replace("TIMES", str(times)))
    docker = Docker.of(HOST)
    if times == 2:
        execute.join(docker, {})
    else:
        with pytest.raises(EngineError, match="connection refused"):
            execute.join(docker, {})
    docker.close()


UNKNOWN = "No ED25519 host key is known for n1 and you have requested strict checking.\n"
CHANGED = "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nOffending ED25519 key in x:1\n"
COMPARE = "`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            UNKNOWN,
            "its SSH host key is not known here\nrun `ssh root@n1`, compare the key with "
            f"{COMPARE} on the host, and accept it",
        ),
        (
            CHANGED,
            "its SSH host key has changed: it was reinstalled, or another machine answers\nif "
            f"{COMPARE} on the host confirms the new key: `ssh-keygen -R n1`, `ssh root@n1`",
        ),
    ],
)
def test_a_host_key_that_ssh_refuses_is_told(
    calls: Path, tmp_path: Path, said: str, message: str
) -> None:
    """The texts are those of OpenSSH 9 and 10; the lab has the real ones."""
    program, host = tmp_path / "bin" / "ssh", dataclasses.replace(HOST, ssh="root@n1")
    program.write_text(
        f"#!/bin/sh\nprintf '{said}Host key verification failed.\\n' >&2\nexit 255\n"
    )
    for ask in (lambda: Docker.of(host).get("/info"), lambda: ssh.run(host, "true")):
        with pytest.raises(KitError) as error:
            ask()
        assert f"{error.value.message}\n{error.value.hint}" == f"n1: cannot be reached: {message}"
    refused = ssh.host_key_error("n1", "root@n1:2222", f"{said}Host key verification failed.")
    assert refused is not None
    assert "`ssh -p 2222 root@n1`" in refused.hint
