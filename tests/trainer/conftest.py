"""A trained model for all tests of the server."""

from pathlib import Path

import pytest

from tests.trainer.hosts import ROOT, hosts, write_job


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training of digits: one checkpoint an epoch, 45 steps each, to step 360."""
    folder = tmp_path_factory.mktemp("trained")
    with hosts(folder) as local:
        job = write_job(folder, epochs=8, keep=20)
        environ = {"KIT_JOB": job, "KIT_CHECKPOINTS": folder / "n1", "PYTHONPATH": ROOT}
        task = local.start("training", ["-m", "trainer.train"], environ)
        assert task.wait() == 0, task.text
    return folder / "n1"
