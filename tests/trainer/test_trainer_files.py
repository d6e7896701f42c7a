"""`checkpoint: {files: …}`: a script's files travel between hosts, the newest wins."""

import json
import re
import shutil
from pathlib import Path

from tests.trainer.hosts import LAUNCH, ROOT, Hosts, Task, hosts, wait_until, write_programs

DDP = ROOT / "tests" / "trainer" / "ddp.py"


def write_script(folder: Path, epochs: int, files: list[str]) -> Path:
    job = folder / "job.json"
    command = ["ddp.py", str(epochs), "5", "--batch_size", "64"]
    job.write_text(
        json.dumps({"name": "own", "command": command, "checkpoint": {"files": files, "keep": 2}})
    )
    return job


def start(local: Hosts, name: str, job: Path, endpoint: str, processes: int = 1) -> Task:
    """Start a host with a working folder of its own, which is the same at its next start."""
    work = local.folder / name / "work"
    work.mkdir(parents=True, exist_ok=True)
    shutil.copy(DDP, work)
    environ: dict[str, str | Path] = {
        "KIT_JOB": job,
        "KIT_RENDEZVOUS": endpoint,
        "KIT_NNODES": "1:2",
        "KIT_NPROC": str(processes),
        "KIT_HOST": name,
        "KIT_CHECKPOINTS": local.folder / name / "checkpoints",
        "KIT_ONE_RUN": "1",
    }
    # The programs that kit mounts, and those of the trainer's package, may meet.
    launch = write_programs(work.parent / "kit") if name == "pc1" else LAUNCH
    return local.start(name, [launch], environ, cwd=work)


def epochs(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\] Epoch (\d+) \|", text)]


def test_a_script_goes_on_after_its_first_host_is_lost(tmp_path: Path) -> None:
    job = write_script(tmp_path, 4000, ["snapshot.pt"])
    with hosts(tmp_path) as local:
        endpoint = local.rendezvous(script=True)
        both = {
            "pc1": start(local, "pc1", job, endpoint),
            "pc2": start(local, "pc2", job, endpoint),
        }
        both["pc1"].expect("| Batchsize")
        wait_until(lambda: max(epochs(both["pc1"].text)) > 12, "a snapshot of the second kind")
        first = "pc1" if "[RANK0]" in both["pc1"].text else "pc2"
        left = "pc2" if first == "pc1" else "pc1"
        # A host that comes late joins the second round, and begins it with the others' files.
        late = "begins round 2 " in local.tasks[0].text
        assert late or not (tmp_path / left / "work" / "snapshot.pt").exists()
        reached, arrived = max(epochs(both[first].text)), set[Path]()

        def come() -> bool:
            arrived.update((tmp_path / left).glob("**/manifest.json"))
            return len(arrived) > 4

        # At most three were there, and one was on its way: the fifth is newer than `reached`.
        wait_until(come, "later snapshots of the other host")
        both[first].end()
        before = len(both[left].text)
        wait_until(lambda: bool(epochs(both[left].text[before:])), "another epoch")
        resumed = epochs(both[left].text[before:])[0]
        assert resumed >= max(5, reached - 6)
