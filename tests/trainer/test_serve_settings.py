"""The settings of a server: its file, the environment, the token, its GPUs."""

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.hosts import DEADLINE, ROOT, hosts
from tests.trainer.servers import Server, inputs, start
from trainer.launcher.errors import LaunchError
from trainer.serve import gpus
from trainer.serve.config import Settings, parse_sources, read_settings

TOKEN = "a-token-of-32-characters-or-more"


def read(folder: Path, environ: dict[str, str] | None = None, **changes: Any) -> Settings:
    file = folder / "server.json"
    file.write_text(json.dumps({"name": "demo", "job": "digits", **changes}))
    return read_settings({"KIT_SERVER": str(file), **(environ or {})})


def test_a_whole_file(tmp_path: Path) -> None:
    content = {
        "checkpoint": "step-00000300",
        "port": 8080,
        "batch": {"size": 64, "window": 0.005},
        "queue": 256,
        "timeout": 10,
        "body": 8388608,
        "pixels": 12582912,
        "token": "SERVE_TOKEN",
        "allowed_hosts": ["Digits.example.com"],
        "poll": 2.0,
    }
    environ = {"SERVE_TOKEN": f"{TOKEN}\n", "KIT_REPLICAS": "2", "KIT_HOST": "n1"}
    settings = read(tmp_path, environ, **content)
    assert (settings.size, settings.window, settings.timeout) == (64, 0.005, 10.0)
    assert (settings.replicas, settings.host, settings.folder) == (2, "n1", Path("/checkpoints"))
    assert settings.token == TOKEN.encode()
    assert settings.allowed_hosts == {"digits.example.com"}


def test_name_and_job_are_enough(tmp_path: Path) -> None:
    settings = read(tmp_path)
    assert (settings.checkpoint, settings.port, settings.size) == ("best", 8080, 64)
    assert (settings.token, settings.replicas, settings.sources) == (None, 1, ())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, "name: must be a text"),
        ({"job": None}, "job: must be a text"),
        ({"checkpoint": "latest"}, "checkpoint: must be newest, best, or a name"),
        ({"port": 0}, "port: must be a whole number of 1 to 65535, is 0"),
        ({"port": True}, "port: must be a whole number"),
        ({"port": 80.5}, "port: must be a whole number"),
        ({"batch": {"size": 0}}, "size: must be a whole number"),
        ({"batch": {"window": -1}}, "window: must be a number"),
        ({"batch": 3}, "must be an object"),
        ({"batch": {"wait": 3}}, "batch.wait: is not a key"),
        ({"timeout": float("nan")}, "timeout: must be a number"),
        ({"token": "no name"}, "token: must be the name of a secret"),
        ({"token": "NOWHERE"}, "neither /run/secrets/NOWHERE nor the variable NOWHERE has it"),
        ({"token": "ACCENT"}, "ACCENT has a space or something else than ASCII in it"),
        ({"token": "SPACE"}, "SPACE has a space or something else than ASCII in it"),
        ({"allowed_hosts": "a"}, "allowed_hosts: must be a list of names"),
        ({"allowed_hosts": [1]}, "allowed_hosts: must be a list of names"),
        ({"speed": 1}, "speed: is not a key of the server's file"),
    ],
)
def test_mistakes_in_the_file(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as caught:
        read(tmp_path, {"ACCENT": "tökèn", "SPACE": "two words"}, **changes)
    assert words in str(caught.value)
    assert str(tmp_path / "server.json") in str(caught.value)
    assert caught.value.code == 2


def test_mistakes_in_the_environment(tmp_path: Path) -> None:
    for name, value in (("KIT_REPLICAS", "0"), ("KIT_CHECKPOINT_SOURCES", "n2:8081")):
        with pytest.raises(LaunchError, match=name):
            read(tmp_path, {name: value})
    with pytest.raises(LaunchError, match="KIT_SERVER must name"):
        read_settings({})
    found = parse_sources("http://n1:8081, http://[fd00::1]:80/")
    assert found == [("n1", 8081), ("fd00::1", 80)]


def test_a_process_says_its_mistake_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, hosts(tmp_path) as local:
        port = taken.getsockname()[1]
        file = tmp_path / "server.json"
        for content, code, words in (
            ({"name": "demo", "job": "digits", "port": "x"}, 2, "port: must be a whole number"),
            ({"name": "demo", "job": "digits", "port": port}, 1, f"port {port} cannot be served"),
        ):
            file.write_text(json.dumps(content))
            environ: dict[str, str | Path] = {
                "KIT_SERVER": file,
                "KIT_HOST": "n1",
                "KIT_ADDRESS": "127.0.0.1",
                "PYTHONPATH": ROOT,
            }
            task = local.start("server", ["-m", "trainer.serve"], environ)
            assert task.wait() == code
            assert task.text.startswith("serve n1: error: ")
            assert words in task.text
            assert task.text.count("\n") == 1


def test_a_token_is_asked_for_and_never_said(trained: Path, tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        server = start(local, trained, environ={"SECRET": TOKEN}, token="SECRET")
        guarded = ("/predict", "/predict/image", "/complete", "/model")
        for token in ("", "wrong", TOKEN[:-1], TOKEN + "x", "tökèn"):
            stranger = Server(server.task, server.port)
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            for path in guarded:
                method = "GET" if path == "/model" else "POST"
                answer = stranger.ask(method, path, **headers)
                assert answer.status == 401
                assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/", "/health", "/ready", "/metrics", "/docs", "/openapi.json"):
            assert server.get(path).status == 200
        assert "bearer" in server.get("/openapi.json").body.decode()
        server.token = TOKEN
        assert server.predict(inputs(1)).status == 200
        assert server.get("/model").status == 200
        assert TOKEN not in server.task.text
        assert TOKEN not in server.get("/metrics").body.decode()


def nvidia_smi(folder: Path, lines: str) -> dict[str, str]:
    """A stand-in that lists GPUs from a file."""
    program = folder / "nvidia-smi"
    (folder / "gpus").write_text(lines)
    program.write_text(f"#!/bin/sh\ncat {folder / 'gpus'}\n")
    program.chmod(0o755)
    return {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "KIT_REPLICAS": "2",
        "KIT_DEVICE": "cpu",
    }


GPUS = "GPU 0: TITAN RTX (UUID: GPU-a)\nGPU 1: Quadro GV100 (UUID: GPU-b)\n"


def test_the_gpus_are_named_as_by_the_launcher(trained: Path, tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        server = start(local, trained, environ=nvidia_smi(tmp_path, GPUS))
        text = server.task.text
        assert text.startswith(
            "launch n1: sees GPU 0: TITAN RTX (UUID: GPU-a)\n"
            "launch n1: sees GPU 1: Quadro GV100 (UUID: GPU-b)\n"
        )
        assert server.get("/model").json["gpus"] == [
            {"model": "TITAN RTX", "uuid": "GPU-a"},
            {"model": "Quadro GV100", "uuid": "GPU-b"},
        ]


@pytest.mark.parametrize(
    ("listed", "device", "error"),
    [
        (GPUS.splitlines()[0], "cpu", "1 of 2 GPUs are left"),
        (GPUS, "", "this container has 2 GPUs, and PyTorch can use 0: "),
    ],
)
def test_a_server_without_a_gpu_of_its_own_does_not_start(
    listed: str, device: str, error: str, tmp_path: Path
) -> None:
    environ = {**nvidia_smi(tmp_path, listed), "KIT_DEVICE": device}
    file = tmp_path / "server.json"
    file.write_text(json.dumps({"name": "demo", "job": "digits"}))
    with hosts(tmp_path) as local:
        environ |= {"KIT_SERVER": str(file), "KIT_HOST": "n1", "PYTHONPATH": str(ROOT)}
        task = local.start("server", ["-m", "trainer.serve"], environ)
        assert task.wait() == 1
        assert f"serve n1: error: {error}" in task.text


def test_a_gpu_that_is_lost_later_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in nvidia_smi(tmp_path, GPUS).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gpus, "EVERY", 0.01)
    seen = gpus.Gpus()

    async def look() -> None:
        watch = asyncio.create_task(seen.watch())
        (tmp_path / "gpus").write_text(GPUS.splitlines()[1])
        while not seen.lost:
            await asyncio.sleep(0.01)
        assert "1 of 2 GPUs are left" in seen.lost
        (tmp_path / "gpus").write_text(GPUS)
        while seen.lost:
            await asyncio.sleep(0.01)
        watch.cancel()

    asyncio.run(asyncio.wait_for(look(), DEADLINE))
