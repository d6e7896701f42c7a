"""Trainings on tokens by real processes: losses of any division, events, faults, the server."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ports import free_port
from tests.trainer.hosts import ROOT, complete_steps, hosts, metrics, write_job
from tests.trainer.servers import start
from tests.trainer.test_parallel import epochs_of, run
from tests.trainer.test_trainer_exchange import launch
from trainer.contract import events
from trainer.text.pack import pack
from trainer.text.packed import load_packed

TOKENS: dict[str, Any] = {
    "dataset": "text", "path": "stories", "tokenizer": "bpe", "vocabulary": 300, "model": "gpt",
    "context": 32, "optimizer": "adamw", "learning_rate": 0.003, "schedule": "constant",
    "clip_norm": 0.5, "activation_checkpointing": True,
    "options": {"layers": 2, "heads": 2, "width": 32, "tied": False, "positions": "rotary"},
}  # fmt: skip
DIVISIONS: dict[str, dict[str, Any]] = {
    "replicas": {"batch_size": 8},
    "shards": {"batch_size": 8, "shard": 2},
    "tensors": {"batch_size": 16, "tensor": 2, "data": 1},
    "stages": {"batch_size": 8, "accumulation": 2, "pipeline": 2, "data": 1},
}
"""Of two ranks: the same global batch of 16 samples."""


def write_stories(folder: Path, seed: int = 0) -> None:
    """Some 200 documents of a few sentences, most of them shorter than a window."""
    draw = random.Random(seed)
    folder.mkdir()
    for file in "ab":
        lines = list[str]()
        for _ in range(100):
            words = [draw.choice(("the", "cat", "sat", "on", "€", "mät", "😀")) for _ in range(20)]
            lines.append(json.dumps({"text": " ".join(words)}))
        (folder / f"{file}.jsonl").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with trainings of two epochs by one process, "alone", and by two in each way."""
    folder = tmp_path_factory.mktemp("tokens")
    write_stories(folder / "stories")
    alone = write_job(folder, name="alone", epochs=2, **TOKENS, batch_size=16)
    (folder / "alone.txt").write_text(run(folder, 1, [(alone, folder / "alone")]))
    jobs = [write_job(folder, name=n, epochs=2, **TOKENS, **each) for n, each in DIVISIONS.items()]
    (folder / "two.txt").write_text(run(folder, 2, [(job, folder / job.stem) for job in jobs]))
    return folder


@pytest.mark.parametrize("name", DIVISIONS)
def test_masked_documents_are_learnt_alike_by_any_ranks(name: str, trained: Path) -> None:
    alone, found = epochs_of(trained / "alone"), epochs_of(trained / name)
    assert len(alone) == len(found) == 2
    for expected, own in zip(alone, found, strict=True):
        assert own == pytest.approx(expected, rel=1e-4)
    # The figures are those of all test tokens, whoever has measured them.
    last, expected_last = (metrics(trained / each)[-1]["metrics"] for each in (name, "alone"))
    assert last == pytest.approx(expected_last, rel=1e-3)


def test_the_figures_of_a_text_follow_from_its_loss(trained: Path) -> None:
    line = metrics(trained / "alone")[-1]
    (folder,) = (trained / "alone" / "tokens").glob("[!.]*")
    data = load_packed(folder, 32)
    assert data.bytes_per_token
    loss, found = line["validation_loss"], line["metrics"]
    assert found["perplexity"] == pytest.approx(math.exp(loss))
    bits = loss / math.log(2) / data.bytes_per_token
    assert found["bits_per_byte"] == pytest.approx(bits)
    assert line["tokens_per_second"] == pytest.approx(32 * line["images_per_second"])
    assert line["mfu"] is None  # Of a CPU.
    assert "tokens/s" in (trained / "alone.txt").read_text()
    assert "images/s" not in (trained / "alone.txt").read_text()


def test_one_process_of_a_host_tokenizes(trained: Path) -> None:
    text = (trained / "two.txt").read_text()
    assert text.count("once on this host") == len(DIVISIONS)


def test_the_checkpoint_has_the_tokens_and_the_manifest_is_small(trained: Path) -> None:
    newest = trained / "replicas" / complete_steps(trained / "replicas")[-1]
    state = torch.load(newest / "state.pt", weights_only=True)
    assert json.loads(state["tokenizer"])["model"]["type"] == "BPE"
    assert (newest / "manifest.json").stat().st_size < 10_000


def ask(server: Any, **body: Any) -> Any:
    answer = server.ask("POST", "/complete", json.dumps(body), "application/json")
    return answer.json if answer.status == 200 else (answer.status, answer.json["error"])


def test_a_server_reads_and_writes_tokens(trained: Path, tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        server = start(local, trained / "replicas", job="replicas")
        first, again = (ask(server, text="the cat", characters=60, seed=1) for _ in range(2))
        assert first["completion"] == again["completion"]
        texts = [ask(server, text="", characters=n, seed=n)["completion"] for n in range(1, 30)]
        assert any("😀" in each or "€" in each for each in texts)
        # Whole texts in any alphabet; bytes that are no character come from the model alone.
        assert ask(server, text="漢字 ß", characters=2)["completion"] is not None
        assert not any(each.endswith("\ufffd") for each in texts)
        model = server.get("/model").json
        assert (model["kind"], model["classes"]) == ("text", [])
        for seed in range(10):
            wish = {"prompt": "the", "max_tokens": 20, "seed": seed}
            whole, pieces = completed(server, **wish), streamed(server, **wish)
            assert "".join(text for text, _ in pieces) == whole["choices"][0]["text"]
            assert not any(text.endswith("\ufffd") for text, _ in pieces)
            ends = {20: "length"}.get(whole["usage"]["completion_tokens"], "stop")
            assert whole["choices"][0]["finish_reason"] == pieces[-1][1] == ends


POEM = """\
Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date;
Sometime too hot the eye of heaven shines,
And often is his gold complexion dimm'd.
"""


@pytest.mark.long
def test_a_learnt_text_is_given_back_beyond_the_context(tmp_path: Path) -> None:
    """The server's window slides: the model must know what follows at all places of its window.

    The job has nothing but its data, its model and epochs: the recipe does the rest.
    """
    (tmp_path / "poem.txt").write_text(POEM)
    own: dict[str, Any] = {"dataset": "text", "path": "poem.txt", "context": 16, "model": "gpt"}
    own |= {"options": TOKENS["options"] | {"width": 64}, "batch_size": 4, "epochs": 300}
    job = tmp_path / "poem.json"
    checkpoint = {"every_epochs": 300}
    job.write_text(json.dumps({"name": "poem", "train": own, "checkpoint": checkpoint}))
    run(tmp_path, 1, [(job, tmp_path / "poem")])
    with hosts(tmp_path) as local:
        server = start(local, tmp_path / "poem", job="poem")
        told = ask(server, text=POEM[:16], characters=200, temperature=0)["completion"]
    assert told == POEM[16:216]


def completed(server: Any, **body: Any) -> Any:
    return server.ask("POST", "/v1/completions", json.dumps(body), "application/json").json


def streamed(server: Any, **body: Any) -> list[tuple[str, str | None]]:
    content = json.dumps(body | {"stream": True})
    answer = server.ask("POST", "/v1/completions", content, "application/json")
    lines = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    found = [json.loads(line)["choices"][0] for line in lines]
    return [(each["text"], each["finish_reason"]) for each in found]


def test_hosts_with_other_texts_are_named(tmp_path: Path) -> None:
    write_stories(tmp_path / "stories")
    (tmp_path / "other").mkdir()
    write_stories(tmp_path / "other" / "stories", seed=1)
    job = write_job(tmp_path, epochs=1, **TOKENS, batch_size=16)
    port = free_port()
    with hosts(tmp_path) as local:
        tasks = [
            local.start(
                name,
                ["-m", "trainer.train"],
                {
                    "KIT_JOB": job, "KIT_CHECKPOINTS": tmp_path / name, "PYTHONPATH": ROOT,
                    "KIT_DATA": root, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                    "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                    "KIT_HOST": name,
                },
            )
            for rank, (name, root) in enumerate(
                (("pc1", tmp_path), ("pc2", tmp_path / "other"))
            )
        ]  # fmt: skip
        assert [task.wait() for task in tasks] == [1, 1]
    assert "the hosts differ: text stories" in tasks[0].text, tasks[0].text
    assert tasks[0].of(events.Failed)[0].kind == "data"


def test_a_packed_folder_is_trained_on_and_resumed(tmp_path: Path) -> None:
    write_stories(tmp_path / "stories")
    files = sorted((tmp_path / "stories").iterdir())
    pack(files, tmp_path / "packed", vocabulary=300)
    keys = {**TOKENS, "path": "packed", "batch_size": 16}
    del keys["tokenizer"], keys["vocabulary"]
    with hosts(tmp_path) as local:
        for epochs in (1, 2):
            job = write_job(tmp_path, epochs=epochs, **keys)
            task = launch(local, job, 2, KIT_DATA=tmp_path)
            assert task.wait() == 0, task.text
    assert "resumes at step" in task.text
    assert not (tmp_path / "digits" / "tokens").exists()
    last = task.of(events.Epoch)[-1]
    assert last.tokens_per_second == pytest.approx(32 * (last.images_per_second or 0))
    assert last.metrics["perplexity"] == pytest.approx(math.exp(last.metrics["loss"]))
    # A damaged folder ends the job at once, with the fix.
    (tmp_path / "packed" / "test.bin").write_bytes(b"ab")
    with hosts(tmp_path) as local:
        job = write_job(tmp_path, epochs=3, **keys)
        environ = {"KIT_JOB": job, "KIT_DATA": tmp_path, "PYTHONPATH": ROOT}
        task = local.start("damaged", ["-m", "trainer.train"], environ)
        assert task.wait() == 2
    assert "make the folder again: python -m trainer.text.pack" in task.text
    assert "Traceback" not in task.text
