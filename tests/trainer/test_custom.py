"""Models, data, losses and metrics of one's own: exact on any number of ranks, faults by line."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.hosts import ROOT, Hosts, Task, complete_steps, hosts, kill, metrics, wait_until
from tests.trainer.own import REGRESSION, own_job, train_job, use, write_module
from trainer.checkpoints.format import manifest_of, read_any
from trainer.contract import events
from trainer.core.job import JobError
from trainer.core.models import build_model
from trainer.core.setup import build_optimizer
from trainer.custom.code import CodeError
from trainer.custom.functions import own_schedule
from trainer.custom.task import own_task
from trainer.data.load import load_data

CPU = torch.device("cpu")
DATASET = """
import random
import torch
from torch import nn
from torch.utils.data import Dataset

class Numbers(Dataset):
    def __init__(self, first, last):
        self.first, self.last = first, last

    def __len__(self):
        return self.last - self.first

    def __getitem__(self, index):
        value = float(self.first + index)
        noise = torch.rand(()).item() + random.random()
        return {"value": torch.tensor([value, noise])}, torch.tensor([value * 2])

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, inputs):
        return {"found": self.layer(inputs["value"] / 100)}

def build(settings):
    return Net()

def data(settings):
    return Numbers(0, 100), Numbers(100, 131), ["only"]

def loss(outputs, targets):
    return (outputs["found"] - targets / 100).square()[:, 0]
"""


def train_alone(started: Hosts, job: Path, code: Path, name: str = "pc1") -> Task:
    """Train in one process, without a launcher."""
    own: dict[str, str | Path] = {"KIT_JOB": job, "KIT_CODE": code, "PYTHONPATH": ROOT}
    own["KIT_CHECKPOINTS"] = started.folder / name
    return started.start(name, ["-m", "trainer.train"], own)


def epochs_of(task: Task) -> list[events.Epoch]:
    return task.of(events.Epoch)


# -------- Training


def test_metrics_are_exact_on_any_number_of_ranks(tmp_path: Path) -> None:
    """107 test samples in batches of 16 on 3 ranks: means of means of batches would differ."""
    code, job = write_module(tmp_path), own_job(tmp_path, accumulation=3)
    three = own_job(tmp_path / "three")
    with hosts(tmp_path) as started:
        alone = train_alone(started, job, code, "alone")
        together = started.pair(three, KIT_CODE=code)
        assert alone.wait() == 0, alone.text
        assert [task.wait() for task in together] == [0, 0], together[0].text
        first = epochs_of(alone)[-1]
        last = max((each for task in together for each in epochs_of(task)), key=lambda e: e.step)
    assert (first.step, last.step) == (10, 10)
    assert last.accuracy is None
    assert last.metrics == pytest.approx(first.metrics, rel=1e-5)
    assert set(first.metrics) == {"loss", "mae", "worst"}
    assert first.metrics["mae"] == pytest.approx(first.metrics["worst"], rel=1e-6)
    saved = read_any(tmp_path / "alone" / "step-00000010")
    assert first.metrics == pytest.approx(by_hand(saved.load()["model"]), rel=1e-5)
    assert "val loss" in alone.text
    assert "accuracy" not in alone.text
    # Beside the code, which is a part of the rendered tree.
    assert not list(tmp_path.rglob("__pycache__"))


def by_hand(weights: dict[str, torch.Tensor]) -> dict[str, float]:
    """The metrics of REGRESSION's model over all test samples at once."""
    space: dict[str, Any] = {}
    exec(REGRESSION, space)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model.load_state_dict(weights)

    class Seed:
        seed = 0

    _, (inputs, targets) = space["data"](Seed)
    with torch.no_grad():
        error = model(inputs) - targets
    mae = float(error.abs().mean())
    return {"loss": float(error.square().mean()), "mae": mae, "worst": mae}


def test_the_best_of_those_without_accuracy_has_the_lowest_loss(tmp_path: Path) -> None:
    code = write_module(tmp_path)
    job = own_job(tmp_path, epochs=6, learning_rate=0.1, schedule="constant", keep=1)
    with hosts(tmp_path) as started:
        task = train_alone(started, job, code)
        assert task.wait() == 0, task.text
        losses = {each.step: each.metrics["loss"] for each in epochs_of(task)}
    best = min(losses, key=losses.__getitem__)
    names = {f"step-{best:08d}", f"step-{max(losses):08d}"}
    assert {*complete_steps(tmp_path / "pc1")} == names
    known = manifest_of(tmp_path / "pc1" / f"step-{best:08d}")
    assert known
    assert known.content["validation_loss"] == pytest.approx(losses[best])


def test_weights_that_stand_still_are_told_until_they_move(tmp_path: Path) -> None:
    """Over the ends of epochs, of which one has fewer than the 100 steps after which it is told."""
    broken = "return (outputs - targets).square().mean() * (next(calls) < 200 and torch.nan or 1.0)"
    text = REGRESSION.replace("return (outputs - targets).square().mean()", broken)
    code = write_module(tmp_path, text.replace("import torch\n", "import itertools, torch\n", 1))
    code.write_text(code.read_text() + "\ncalls = itertools.count()\n")
    job = own_job(tmp_path, epochs=20, on_nan="skip", skip_limit=1.0, batch_size=20)
    with hosts(tmp_path) as started:
        task = train_alone(started, job, code)
        assert task.wait() == 0, task.text
    told = [each.steps for each in task.of(events.Unmoved)]
    assert told == [100, 0]
    assert "the weights have not changed for 100 steps, up to step 100: losses or" in task.text


def test_samples_of_a_dataset_are_read_in_workers(tmp_path: Path) -> None:
    """Nested inputs and outputs, and random numbers that depend on epoch and sample alone."""
    code, job = write_module(tmp_path, DATASET), own_job(tmp_path, accumulation=3)
    three = own_job(tmp_path / "three")
    with hosts(tmp_path) as started:
        alone = train_alone(started, job, code, "alone")
        together = started.pair(three, KIT_CODE=code)
        assert alone.wait() == 0, alone.text
        assert [task.wait() for task in together] == [0, 0], together[0].text
        last = max((each for task in together for each in epochs_of(task)), key=lambda e: e.step)
        assert last.metrics == pytest.approx(epochs_of(alone)[-1].metrics, rel=1e-5)


@pytest.mark.long
def test_a_lost_worker_costs_no_step_and_no_restart_of_others(tmp_path: Path) -> None:
    slow = REGRESSION.replace("def loss(", "def loss_of(") + (
        "\nimport time\n\ndef loss(outputs, targets):\n"
        "    time.sleep(0.02)\n    return loss_of(outputs, targets)\n"
    )
    code, job = write_module(tmp_path, slow), own_job(tmp_path, epochs=12)
    with hosts(tmp_path) as started:
        first, second = started.pair(job, "1:2", KIT_CODE=code)
        wait_until(lambda: len(metrics(tmp_path / "pc1", tmp_path / "pc2")) > 2, "two epochs")
        kept = first.workers()
        kill(second.workers()[0])
        assert (first.wait(), second.wait()) == (0, 0), first.text
        tasks = (first, second)
        assert any(each.of(events.Regrouped) for each in tasks), first.text
        ends = [each for task in tasks for each in epochs_of(task)]
        assert len(kept) == 1
        assert sum("rank " in line and " of " in line for line in first.text.splitlines()) >= 1
    lines = metrics(tmp_path / "pc1", tmp_path / "pc2")
    assert [each["epoch"] for each in lines if each["event"] == "epoch"] == [*range(1, 13)]
    assert max(each.step for each in ends) == lines[-1]["step"]


def test_it_resumes_where_it_stopped(tmp_path: Path) -> None:
    code, job = write_module(tmp_path), own_job(tmp_path, epochs=2, schedule="constant")
    longer = own_job(tmp_path, epochs=4, schedule="constant")
    with hosts(tmp_path) as started:
        job.write_text(job.read_text().replace('"epochs": 4', '"epochs": 2'))
        part = train_alone(started, job, code)
        assert part.wait() == 0, part.text
        job.write_text(longer.read_text().replace('"epochs": 2', '"epochs": 4'))
        rest = train_alone(started, job, code)
        assert rest.wait() == 0, rest.text
        whole = train_alone(started, job, code, "whole")
        assert whole.wait() == 0, whole.text
        assert rest.of(events.Resumed)[0].epoch == 2
        assert epochs_of(rest)[-1].metrics == epochs_of(whole)[-1].metrics


def test_another_model_than_that_of_the_checkpoint_is_told(tmp_path: Path) -> None:
    code, job = write_module(tmp_path), own_job(tmp_path, epochs=1)
    with hosts(tmp_path) as started:
        assert train_alone(started, job, code).wait() == 0
        write_module(tmp_path, REGRESSION.replace('"width", 8', '"width", 16'))
        task = train_alone(started, own_job(tmp_path, epochs=2), code)
        assert task.wait() == 2
        assert "mine.py:4: the checkpoint's model does not fit" in task.text
        assert "Traceback" not in task.text


def test_a_model_of_ones_own_learns_data_of_the_trainer(tmp_path: Path) -> None:
    text = """
    from torch import nn

    def build(settings):
        assert settings.shape == (1, 8, 8), settings
        return nn.Sequential(nn.Flatten(), nn.Linear(64, len(settings.labels)))
    """
    code = write_module(tmp_path, text)
    with hosts(tmp_path) as started:
        job = own_job(tmp_path, dataset="digits", learning_rate=0.1, epochs=3)
        task = train_alone(started, job, code)
        assert task.wait() == 0, task.text
        last = epochs_of(task)[-1]
        assert last.accuracy is not None
        assert last.accuracy > 0.8
        assert last.metrics == {}
        assert list((tmp_path / "pc1").rglob("evaluation.json"))


# -------- Faults


@pytest.mark.parametrize("many", [False, True])
def test_a_fault_in_a_step_ends_the_training_at_once(tmp_path: Path, many: bool) -> None:
    """No rank is started again, and no traceback of the trainer is printed."""
    text = REGRESSION.replace("return (outputs - targets).square().mean()", "return outputs.wrong")
    code, job = write_module(tmp_path, text), own_job(tmp_path)
    with hosts(tmp_path) as started:
        tasks = started.pair(job, KIT_CODE=code) if many else (train_alone(started, job, code),)
        assert {task.wait() for task in tasks} == {2}, tasks[0].text
        said = "".join(task.text for task in tasks)
        failed = [each for task in tasks for each in task.of(events.Failed)]
        assert not [each for task in tasks for each in task.of(events.Restart)]
    want = "mine.py:15: in loss: AttributeError: 'Tensor' object has no attribute 'wrong'"
    assert want in said
    assert "Traceback" not in said
    assert "trainer/core" not in said
    assert {each.kind for each in failed} == {"input"}
    assert any(want in each.message for each in failed)


HEAD = "import torch\nfrom torch import nn\n"
GOOD = HEAD + "def build(s): return nn.Linear(3, 1)\n"
PARTS = "(torch.ones(8, 3), torch.ones(8, 1))"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nothing_of_this_name", r"mine.py:1: in <module>: ModuleNotFoundError: No module"),
        ("def build(:", r"mine.py:1: invalid syntax"),
        ("x = 1", r"mine.py: it has no function data; use one of x"),
        ("data = 3", r"mine.py: data is no function, but a int"),
        ("def dato(): pass", r"mine.py: it has no function data; did you mean dato\?"),
        ("def data(s):\n    return 1 / 0", r"mine.py:2: in data: ZeroDivisionError: division by"),
        ("def data(s):\n    return 3", r"mine.py:1: it returns a int, not train and test"),
        ("def data(): pass", r"mine.py:1: TypeError: data\(\) takes 0 positional arguments but 1"),
        ("def data(s): return iter([]), 1", r"mine.py:1: the train part is a list_iterator, not a"),
        (f"{HEAD}def data(s): return {PARTS}, []", r"mine.py:3: the test part is empty"),
        (
            f"{HEAD}def data(s): return (torch.ones(8, 3), torch.ones(7)), {PARTS}",
            r"mine.py:3: the train part has tensors of the shapes \[8, 3\], \[7\], not of inputs",
        ),
        (
            "class D:\n  def __len__(self): return 2\n"
            "  def __getitem__(self, i): return [1][i + 1]\ndef data(s): return D(), D()",
            r"mine.py:3: in __getitem__: IndexError: list index out of range",
        ),
        (
            f"{HEAD}P = (torch.ones(3, 2), torch.tensor([0, 7, 1]))\n"
            "def data(s): return P, P, ['cat', 'dog']",
            r"mine.py:4: sample 1 of train has label 7; labels are 0 to 1, for the classes cat",
        ),
        ("def data(s): return [1.5] * 3, [2.5]", r"mine.py:1: a sample is a float, not a pair of"),
    ],
)
def test_a_fault_in_the_data_has_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    use(monkeypatch, write_module(tmp_path, text))
    with pytest.raises(CodeError) as caught:
        load_data(train_job().train, tmp_path)
    assert re.match(says, str(caught.value)), caught.value
    assert str(tmp_path) not in str(caught.value)


def test_labels_of_a_dataset_are_checked_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """class D:
    def __len__(self): return 4
    def __getitem__(self, i): return 1.5, [0, 1, -100, 2][i]
def data(s): return D(), D(), ["cat", "dog"]"""
    use(monkeypatch, write_module(tmp_path, text))
    data = load_data(train_job().train, tmp_path)
    data.test.take(torch.arange(3), torch.device("cpu"))
    with pytest.raises(CodeError, match=r"mine\.py:4: sample 3 of test has label 2; labels are 0"):
        data.test.take(torch.arange(4), torch.device("cpu"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def build(s): return 3", r"mine.py:3: it returns a int, not an nn.Module"),
        ("def build(s): return nn.ReLU()", r"mine.py:3: its model has no parameters to train"),
        ("def build(s):\n  return nn.Linear(3)", r"mine.py:4: in build: TypeError"),
        (f"{GOOD[len(HEAD) :]}loss = 3", r"mine.py: loss is no function, but a int"),
        (
            f"{GOOD[len(HEAD) :]}def optimizer(m, s): return 3",
            r"mine.py:4: it returns a int, not a torch.optim.Optimizer",
        ),
        (
            f"{GOOD[len(HEAD) :]}def optimizer(m, s): return torch.optim.LBFGS(m.parameters())",
            r"mine.py:4: LBFGS computes each step's loss itself, which kit does not do",
        ),
        (
            f"{GOOD[len(HEAD) :]}"
            "def optimizer(m, s): return torch.optim.SGD(nn.Linear(3, 1).parameters())",
            r"mine.py:4: the optimizer has no parameter of the model",
        ),
    ],
)
def test_a_fault_in_the_model_has_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    use(monkeypatch, write_module(tmp_path, f"{HEAD}def data(s): return {PARTS}, {PARTS}\n{text}"))
    says = re.sub(r"py:(\d)", lambda found: f"py:{int(found[1]) + 1}", says)
    train = train_job().train

    def build() -> None:
        model = build_model(train, load_data(train, tmp_path))
        own_task(train)
        build_optimizer(model, train)

    with pytest.raises(CodeError, match=says):
        build()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def loss(o, t): return 3.0", r"mine.py:4: it returns a float, not a Tensor of floats"),
        (
            "def loss(o, t): return t.float().mean()",
            r"mine.py:4: the loss does not depend on the model",
        ),
        (
            "def loss(o, t): return o",
            r"mine.py:4: the loss has the shape \[4, 1\], not \[\] for the",
        ),
        ("def loss(o, t): return o - t[:3]", r"mine.py:4: in loss: RuntimeError: The size of ten"),
        ("", r"mine.py:3: the model, its loss or its metrics: RuntimeError: .*"),
    ],
)
def test_a_fault_in_the_loss_has_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    use(monkeypatch, write_module(tmp_path, GOOD + text))
    task = own_task(train_job().train)
    outputs = torch.ones(4, 1, requires_grad=True)
    with pytest.raises(CodeError, match=says), task.guard():
        task.loss(outputs, torch.ones(4, 2, dtype=torch.int64))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("return 3", r"mine.py:5: it returns a int, not a dict by name"),
        ("return {'loss': o.mean()}", r"mine.py:5: the name loss is taken"),
        ("return {'a': o}", r"mine.py:5: the metric a has the shape \[4, 1\], not \[\] for"),
    ],
)
def test_a_fault_in_the_metrics_has_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    code = f"{GOOD}def loss(o, t): return o.mean()\ndef metrics(o, t): {text}\n"
    use(monkeypatch, write_module(tmp_path, code))
    task = own_task(train_job().train)
    with pytest.raises(CodeError, match=says), task.guard(), torch.no_grad():
        task.sums(torch.ones(4, 1), torch.ones(4, 1))


def test_failures_of_others_are_no_faults_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, write_module(tmp_path, GOOD))
    task = own_task(train_job().train)
    for error in (
        RuntimeError("[gloo/transport/tcp/pair.cc:1] connection closed by peer"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        torch.cuda.OutOfMemoryError("CUDA out of memory"),
    ):
        with pytest.raises(type(error), match=re.escape(str(error))), task.guard():
            raise error


# -------- Optimizer and schedule


def test_an_optimizer_and_a_schedule_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"""{GOOD}
def optimizer(model, settings):
    rate = settings.learning_rate
    groups = [{{"params": [model.weight]}}, {{"params": [model.bias], "lr": 4 * rate}}]
    return torch.optim.RMSprop(groups, lr=rate)

def schedule(done):
    return 1 - done / 2
"""
    use(monkeypatch, write_module(tmp_path, text))
    train = train_job(learning_rate=0.5).train
    optimizer = build_optimizer(torch.nn.Linear(3, 1), train)
    assert isinstance(optimizer, torch.optim.RMSprop)
    assert [group["scale"] for group in optimizer.param_groups] == [1.0, 4.0]
    rate = own_schedule(train)
    assert rate
    assert [rate(0.0), rate(0.5), rate(1.0)] == [0.5, 0.375, 0.25]
    adam, constant = train_job(optimizer="adam").train, train_job(schedule="constant").train
    with pytest.raises(JobError, match=r"train.optimizer: mine.py:\d+ has a function for it"):
        build_optimizer(torch.nn.Linear(3, 1), adam)
    with pytest.raises(JobError, match=r"train.schedule: mine.py:\d+ has a function for it"):
        own_schedule(constant)


@pytest.mark.parametrize("factor", ["-1", "float('nan')", "float('inf')"])
def test_a_schedule_gives_factors_from_0_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: str
) -> None:
    text = f"{GOOD}\ndef schedule(done): return {factor} if done else -1e-12\n"
    use(monkeypatch, write_module(tmp_path, text))
    rate = own_schedule(train_job(learning_rate=0.5).train)
    assert rate
    assert rate(0.0) == 0
    says = rf"mine.py:\d+: it returns {factor[-5:-2] if 'f' in factor else factor} after the share"
    with pytest.raises(CodeError, match=f"{says} 0.25, not a factor from 0 on"):
        rate(0.25)


def test_a_loss_of_ones_own_gets_no_mixed_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, write_module(tmp_path))
    for name in ("mixup", "cutmix"):
        train = train_job(dataset="cifar10", **{name: 0.2}).train
        what = f"train.{name}: .*mine.py.*is a custom loss, which does not support mixed labels"
        with pytest.raises(JobError, match=what):
            own_task(train)
