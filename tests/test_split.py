# ruff: noqa: E501 - a message is one line
"""Splits: the chosen GPUs, the weakest GPUs, texts edited byte for byte."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.config.load import Sources, read_inventory
from kit.errors import FaultsError
from kit.model import Inventory, Use
from kit.split.compare import moves, reverse
from kit.split.edit import edited
from kit.split.sections import Key, Split, moved, slots
from kit.split.select import Selectors, select
from tests.sandbox import COMMAND, INVENTORY, JOB, SERVER, Project, kit_process, snapshot

FILE = Path("inventory.yaml")
POOL = """\
cluster: pool
hosts:
  pc1:
    address: 192.168.8.151
    roles: [manager]
    gpus:
      - {uuid: GPU-5f3a1c9e, model: TITAN RTX, memory: 24GiB}
  pc2:
    address: 192.168.8.114
    gpus:
      - {uuid: GPU-91a002d4, model: TITAN RTX, memory: 24GiB}
      - {uuid: GPU-91c07be6, model: Quadro GV100, memory: 32GiB}
      - {uuid: MIG-GPU-7/1/0, model: A100 MIG 1g.5gb, memory: 5GiB, use: inference}
      - {uuid: GPU-display, model: T4, use: none}
  pc3: {address: 192.168.8.115}
  ws1: {address: 192.168.8.116, gpus: 3}
  "gpu[001-004]": {address: "10.0.0.[1-4]", gpus: 2}
  "one[7-7]": {address: "10.0.1.[7-7]", gpus: 1}
"""


def inventory_of(text: str) -> Inventory:
    return read_inventory(text, FILE, Sources())


def always(_: Split) -> bool:
    return True


def chosen(text: str, wanted: Selectors) -> dict[str, str]:
    """Return the changes, by the names on the command line."""
    inventory = inventory_of(text)
    split = select(inventory, wanted, always)
    return {slot.name: str(split[slot.key]) for slot in slots(inventory) if slot.key in split}


SELECTORS = [
    ("pc2:1", "pc2:1"),
    ("pc2:0-1", "pc2:0 pc2:1"),
    ("pc2:0,1", "pc2:0 pc2:1"),
    ("pc2:0,1-1", "pc2:0 pc2:1"),
    ("pc2:GPU-91c0", "pc2:1"),
    ("pc2:gpu-91C07BE6", "pc2:1"),
    ("pc2:GPU-91c07be6…", "pc2:1"),
    ("GPU-5f", "pc1:0"),
    ("pc2:Quadro GV100", "pc2:1"),
    ("pc2:gv", "pc2:1"),
    ("TITAN RTX", "pc1:0 pc2:0"),
    ("titan", "pc1:0 pc2:0"),
    ("pc1", "pc1:0"),
    ("pc1:all", "pc1:0"),
    ("pc2", "pc2:0 pc2:1"),
    ("pc2:3", "pc2:3"),
    ("pc2:GPU-display", "pc2:3"),
    ("ws1:2", "ws1:2"),
    ("ws1", "ws1:0 ws1:1 ws1:2"),
    ("gpu[001-004]:1", "gpu[001-004]:1"),
    ("gpu[001-004]", "gpu[001-004]:0 gpu[001-004]:1"),
    ("one7", "one[7-7]:0"),
    ("all", "pc1:0 pc2:0 pc2:1 ws1:0 ws1:1 ws1:2 gpu[001-004]:0 gpu[001-004]:1 one[7-7]:0"),
]  # fmt: skip


@pytest.mark.parametrize(("selector", "meant"), SELECTORS)
def test_a_selector_means_gpus(selector: str, meant: str) -> None:
    assert chosen(POOL, Selectors(infer=(selector,))) == dict.fromkeys(meant.split(), "inference")


def test_selectors_combine() -> None:
    wanted = Selectors(
        infer=("pc2:0", "pc2:TITAN RTX"), train=("MIG-GPU-7/1/0", "pc1"), none=("ws1",)
    )
    assert chosen(POOL, wanted) == {
        "pc2:0": "inference",
        "pc2:2": "training",
        "ws1:0": "none",
        "ws1:1": "none",
        "ws1:2": "none",
    }


WRONG = [
    (["--infer", "pc9:0"], "2: hosts: --infer pc9:0: there is no host pc9; did you mean pc3?"),
    (["--infer", "pc2:4"], "10: hosts.pc2.gpus: --infer pc2:4: pc2 has 4 GPUs; write an index from 0 to 3"),
    (["--infer", "pc2:1-0"], "10: hosts.pc2.gpus: --infer pc2:1-0: pc2 has 4 GPUs; write an index from 0 to 3"),
    (["--train", "pc1:7"], "6: hosts.pc1.gpus: --train pc1:7: pc1 has 1 GPU; write index 0"),
    (["--infer", "pc3"], "15: hosts.pc3: --infer pc3: pc3 has no GPU; name another host"),
    (["--infer", "pc2:GPU-91"], "8: hosts.pc2: --infer pc2:GPU-91 matches pc2:0 (GPU-91a002d4), pc2:1 (GPU-91c07be6); write more of the UUID"),
    (["--infer", "pc1:GPU-91c0"], "3: hosts.pc1: --infer pc1:GPU-91c0: pc1 has no GPU with that UUID; use one of GPU-5f3a1c9e"),
    (["--infer", "ws1:GPU-91c0"], "16: hosts.ws1: --infer ws1:GPU-91c0: ws1 has no GPU with that UUID; name the GPU by its index, from 0 on"),
    (["--infer", "GPU-5f3a1c9f"], "2: hosts: --infer GPU-5f3a1c9f: there is no GPU with that UUID; did you mean GPU-5f3a1c9e?"),
    (["--infer", "pc2:t"], "8: hosts.pc2: --infer pc2:t matches TITAN RTX and T4; write more of the name"),
    (["--infer", "pc2:GV10O"], "8: hosts.pc2: --infer pc2:GV10O: pc2 has no GPU of that model; use one of TITAN RTX, Quadro GV100, A100 MIG 1g.5gb, T4"),
    (["--infer", "Quadro GV10O"], "2: hosts: --infer Quadro GV10O: 'Quadro GV10O' is not a host, a UUID or a model of a GPU; did you mean Quadro GV100?"),
    (["--infer", "T4"], "2: hosts: --infer T4: a split does not move pc2:3 (`use: none`); name one by its index, as in pc2:3"),
    (["--infer", "gpu003:1"], "17: hosts.gpu[001-004]: --infer gpu003:1: gpu003 is one of 4 hosts that share a list of GPUs; write 'gpu[001-004]' for all of them, or take gpu003 out of the range and describe it beside: `\"gpu[001-002]\":`, `gpu003:` and `gpu004:`"),
    (["--infer", "gpu004"], "17: hosts.gpu[001-004]: --infer gpu004: gpu004 is one of 4 hosts that share a list of GPUs; write 'gpu[001-004]' for all of them, or take gpu004 out of the range and describe it beside: `\"gpu[001-003]\":` and `gpu004:`"),
    (["--infer", "pc2:0", "--train", "pc2"], "11: hosts.pc2.gpus[0]: --infer pc2:0 and --train pc2 both select pc2:0; keep one of the two"),
    (["--train", "2"], "2: hosts: --train 2: only --infer takes a number of GPUs; write --infer N for the number of GPUs for inference, or name the GPUs"),
    (["--infer", "2", "--infer", "pc1"], "2: hosts: --infer 2 --infer pc1: a number means all GPUs for inference; write the number alone, or name the GPUs"),
    (["--infer", "99"], "2: hosts: --infer 99: there are only 16 GPUs beside 1 GPU that this command does not change; write a number up to 16"),
    (["--infer", "7", "--train", "pc1", "--train", "ws1", "--train", "one7", "--train", "pc2"], "17: hosts.gpu[001-004]: --infer 7: gpu[001-004]:1 are 4 GPUs that move together, as their hosts are a range; write 4 or 8, or describe the hosts one by one"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_a_wrong_selector_is_answered_at_its_line(
    project: Project, arguments: list[str], message: str
) -> None:
    project.write(POOL)
    before = snapshot(project.folder)
    result = project.kit("split", *arguments, "--yes")
    assert (result.status, result.out) == (2, "")
    assert result.err == f"inventory.yaml:{message}\n"
    assert snapshot(project.folder) == before


def test_all_wrong_selectors_are_answered_at_once(project: Project) -> None:
    result = project.write(POOL).kit("split", "--infer", "pc9", "--train", "pc2:9", "--none", "3")
    assert result.status == 2
    assert len(result.err.splitlines()) == 3


# ---- the weakest

STRENGTHS = """\
cluster: lab
hosts:
  a:
    address: 10.0.0.1
    roles: [manager]
    gpus:
      - {uuid: GPU-h, model: H100, memory: 80GiB}
      - {uuid: GPU-x, model: Mystery 9}
      - {uuid: GPU-y, model: Mystery 9, memory: 8GiB}
      - {uuid: GPU-t, model: TITAN RTX, memory: 24GiB}
      - {uuid: GPU-v, model: Quadro GV100, memory: 32GiB}
      - {uuid: GPU-z, model: T4}
      - {uuid: GPU-4, model: T4, memory: 16GiB}
      - {uuid: GPU-n, model: GT 710, use: none}
  b: {address: 10.0.0.2, gpus: 2}
"""
# By capability, then memory; unknown GPUs come last, and equals in reverse order.
ORDER = ["a:4", "a:6", "a:3", "a:5", "a:0", "a:2", "b:1", "b:0", "a:1"]


@pytest.mark.parametrize("number", range(10))
def test_the_weakest_serve(number: int) -> None:
    assert list(chosen(STRENGTHS, Selectors(infer=(str(number),)))) == sorted(ORDER[:number])


@pytest.mark.parametrize("now", range(10))
@pytest.mark.parametrize("wanted", range(10))
def test_a_slider_has_one_place_for_each_number(now: int, wanted: int) -> None:
    text = edited(STRENGTHS, "f", select(inventory_of(STRENGTHS), Selectors((str(now),)), always))
    again = edited(text, "f", select(inventory_of(text), Selectors((str(wanted),)), always))
    assert again == edited(
        STRENGTHS, "f", select(inventory_of(STRENGTHS), Selectors((str(wanted),)), always)
    )


def test_a_number_leaves_alone_what_is_named() -> None:
    assert chosen(STRENGTHS, Selectors(infer=("1",), train=("a:4",), none=("a:6",))) == {
        "a:6": "none",
        "a:3": "inference",
    }


def test_a_range_moves_as_a_whole() -> None:
    text = 'cluster: lab\nhosts:\n  "n[1-3]": {address: "10.0.0.[1-3]", roles: [manager], gpus: 2}\n  m: {address: 10.0.0.9, gpus: [{index: 0, model: H100}]}\n'
    assert chosen(text, Selectors(infer=("1",))) == {"m:0": "inference"}
    assert chosen(text, Selectors(infer=("4",))) == {"n[1-3]:1": "inference", "m:0": "inference"}
    assert chosen(text, Selectors(infer=("6",))) == {
        "n[1-3]:0": "inference",
        "n[1-3]:1": "inference",
    }
    with pytest.raises(FaultsError) as caught:
        chosen(text, Selectors(infer=("5",)))
    (fault,) = caught.value.faults
    assert (
        fault.what
        == "--infer 5: n[1-3]:1 are 3 GPUs that move together, as their hosts are a range"
    )
    assert fault.fix == "write 4 or 6, or describe the hosts one by one"


TWO_JOBS = {
    "a": JOB + "hosts: {names: [pc1]}\n",
    "b": JOB + "hosts: {names: [pc2]}\n",
}
WEAK_ALONE = """\
cluster: lab
hosts:
  pc1:
    address: 10.0.0.1
    roles: [manager]
    gpus: [{uuid: GPU-a, model: T4}]
  pc2:
    address: 10.0.0.2
    gpus:
      - {uuid: GPU-b, model: H100}
      - {uuid: GPU-c, model: H100}
"""


def test_the_weakest_is_passed_over_where_a_job_needs_it(project: Project) -> None:
    project.write(WEAK_ALONE, TWO_JOBS)
    assert project.kit("split", "--infer", "1", "--yes").status == 0
    text = (project.folder / "inventory.yaml").read_text()
    assert text == WEAK_ALONE.replace(
        "{uuid: GPU-c, model: H100}", "{uuid: GPU-c, model: H100, use: inference}"
    )
    result = project.kit("split", "--infer", "2", "--yes")
    assert result.status == 2
    assert result.err.startswith(
        "kit: this split is not made: the jobs do not fit the remaining GPUs:\n"
        "jobs/a.yaml:7: hosts.names[0]: pc1 has no GPU for training; leave it out, or set `use: training`\n"
    )
    assert (project.folder / "inventory.yaml").read_text() == text


def test_of_many_hosts_each_keeps_a_gpu_where_jobs_need_it(project: Project) -> None:
    project.write(
        "cluster: lab\nhosts:\n"
        + "".join(
            f"  n{i}: {{address: 10.0.0.{i}, roles: [manager], gpus: 40}}\n" for i in (1, 2, 3)
        ),
        {"j": JOB + "hosts: {min: 3}\n"},
    )
    before = snapshot(project.folder)
    result = project.kit("split", "--infer", "100", "--yes")
    assert result.status == 0
    assert "… and 80 more\n" in result.out
    assert result.out.endswith("undo: kit split --train n1:18-39 --train n2:1-39 --train n3:1-39\n")
    assert project.kit("split", "--infer", "0", "--yes").status == 0
    assert snapshot(project.folder) == before
    assert project.kit("split", "--infer", "100", "--yes").status == 0
    assert [part.processes for part in project.plan().jobs[0].placements] == [18, 1, 1]
    result = project.kit("split", "--infer", "118", "--yes")
    assert result.status == 2
    assert "hosts.min: the job wants at least 3 hosts, 1 can take part" in result.err


# ---- texts

HOST = "cluster: lab\nhosts:\n  a:\n    address: 10.0.0.1\n"
EDITS: list[tuple[str, str, str]] = [
    # What stands under `gpus`, and what after GPU-a (or GPU 0) went to inference.
    ("flow", "    gpus:\n      - {uuid: GPU-a, model: X}  # mine\n      - {uuid: GPU-b}\n", "    gpus:\n      - {uuid: GPU-a, model: X, use: inference}  # mine\n      - {uuid: GPU-b}\n"),
    ("flow in flow", "    gpus: [{uuid: GPU-a}, {uuid: GPU-b}]\n", "    gpus: [{uuid: GPU-a, use: inference}, {uuid: GPU-b}]\n"),
    ("wide flow", "    gpus: [ { uuid: GPU-a } ]\n", "    gpus: [ { uuid: GPU-a, use: inference } ]\n"),
    ("comma at the end", "    gpus: [{uuid: GPU-a,},]\n", "    gpus: [{uuid: GPU-a, use: inference,},]\n"),
    ("a flow over lines", "    gpus:\n      - {uuid: GPU-a,  # the upper one\n         model: X  # old\n        }\n", "    gpus:\n      - {uuid: GPU-a,  # the upper one\n         model: X, use: inference  # old\n        }\n"),
    ("JSON", '    gpus: [{"uuid": "GPU-a"}]\n', '    gpus: [{"uuid": "GPU-a", "use": "inference"}]\n'),
    ("block", "    gpus:\n      - uuid: GPU-a\n        model: X   # old\n\n      # the next\n      - uuid: GPU-b\n", "    gpus:\n      - uuid: GPU-a\n        model: X   # old\n        use: inference\n\n      # the next\n      - uuid: GPU-b\n"),
    ("block, far in", "    gpus:\n    -   uuid: 'GPU-a'\n", "    gpus:\n    -   uuid: 'GPU-a'\n        use: inference\n"),
    ("block, no newline", "    gpus:\n      - uuid: GPU-a", "    gpus:\n      - uuid: GPU-a\n        use: inference"),
    ("block on a line of its own", "    gpus:\n      -\n        uuid: GPU-a\n", "    gpus:\n      -\n        uuid: GPU-a\n        use: inference\n"),
    ("block scalar", "    gpus:\n      - uuid: GPU-a\n        model: >-\n          Long\n          name\n", "    gpus:\n      - uuid: GPU-a\n        use: inference\n        model: >-\n          Long\n          name\n"),
    ("text over lines", '    gpus:\n      - uuid: GPU-a\n        model: "Long\n          name"  # x\n', '    gpus:\n      - uuid: GPU-a\n        model: "Long\n          name"  # x\n        use: inference\n'),
    ("merged keys", "    gpus:\n      - {uuid: GPU-b, <<: &m {model: X}}\n      - {<<: *m, uuid: GPU-a}\n", "    gpus:\n      - {uuid: GPU-b, <<: &m {model: X}}\n      - {<<: *m, uuid: GPU-a, use: inference}\n"),
    ("merged keys at the end", "    gpus:\n      - {uuid: GPU-b, <<: &m {model: X}}\n      - {uuid: GPU-a, <<: *m}\n", "    gpus:\n      - {uuid: GPU-b, <<: &m {model: X}}\n      - {uuid: GPU-a, use: inference, <<: *m}\n"),
    ("an anchor that nobody uses", "    gpus: &g\n      - &x {uuid: GPU-a}\n", "    gpus: &g\n      - &x {uuid: GPU-a, use: inference}\n"),
    ("another use", "    gpus:\n      - {use: 'none', uuid: GPU-a}\n", "    gpus:\n      - {use: 'inference', uuid: GPU-a}\n"),
    ("another use in a block", "    gpus:\n      - use: none  # yet\n        uuid: GPU-a\n", "    gpus:\n      - use: inference  # yet\n        uuid: GPU-a\n"),
    ("a use with a tag and an anchor", "    gpus: [{uuid: GPU-a, use: &u !!str none}]\n", "    gpus: [{uuid: GPU-a, use: &u !!str inference}]\n"),
    ("a number", "    gpus: 2   # no UUIDs yet\n", "    gpus: [{use: inference, index: 0}, {index: 1}]   # no UUIDs yet\n"),
    ("indexes in a block", "    gpus:\n      - index: 0\n      - index: 1\n", "    gpus:\n      - index: 0\n        use: inference\n      - index: 1\n"),
    ("indexes out of order", "    gpus: [{index: 1}, {index: 0}]\n", "    gpus: [{index: 1}, {index: 0, use: inference}]\n"),
    ("indexes with models", "    gpus: [{index: 0, model: X}]\n", "    gpus: [{index: 0, model: X, use: inference}]\n"),
    ("characters beyond one", "    # grüße 漢字 😀\n    gpus: [{model: 漢😀, uuid: GPU-a}]\n", "    # grüße 漢字 😀\n    gpus: [{model: 漢😀, uuid: GPU-a, use: inference}]\n"),
    ("a number without a newline", "    gpus: 1", "    gpus: [{use: inference, index: 0}]"),
    ("a number with an anchor", "    gpus: &two 2\n", "    gpus: &two [{use: inference, index: 0}, {index: 1}]\n"),
    ("a list like the number's", "    gpus: [{index: 0}, {index: 1}]\n", "    gpus: [{index: 0, use: inference}, {index: 1}]\n"),
    ("a list of one", "    gpus: &one [{index: 0}]\n", "    gpus: &one [{index: 0, use: inference}]\n"),
]  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "\ufeff", "# ü\n---\n"], ids=["plain", "bom", "document"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize(("name", "before", "after"), EDITS, ids=[name for name, *_ in EDITS])
def test_an_edit_and_its_reverse(
    name: str, before: str, after: str, newline: str, prefix: str
) -> None:
    old, new = ((prefix + HOST + text).replace("\n", newline) for text in (before, after))
    inventory = inventory_of(old)
    (slot,) = (slot for slot in slots(inventory) if slot.gpu.id in {"GPU-a", "0"})
    split = {slot.key: Use.INFERENCE}
    assert edited(old, "f", split) == new
    assert inventory_of(new) == moved(inventory, split)
    assert edited(new, "f", {slot.key: slot.gpu.use}) == old


def test_a_use_at_another_place_becomes_training_there() -> None:
    for before, after in (
        ("{use: inference, uuid: GPU-a}", "{use: training, uuid: GPU-a}"),
        ("{uuid: GPU-a,use: inference}", "{uuid: GPU-a,use: training}"),
        ('{uuid: GPU-a, use: "inference"}', '{uuid: GPU-a, use: "training"}'),
        ("{uuid: GPU-a, # x\n      use: inference}", "{uuid: GPU-a, # x\n      use: training}"),
        (
            "uuid: GPU-a\n        use: inference  # for the demo",
            "uuid: GPU-a\n        use: training  # for the demo",
        ),
        (
            "uuid: GPU-a\n        # for the demo\n        use: inference",
            "uuid: GPU-a\n        # for the demo\n        use: training",
        ),
    ):
        old, new = (f"{HOST}    gpus:\n      - {text}\n" for text in (before, after))
        assert edited(old, "f", {("a", "GPU-a"): Use.TRAINING}) == new
        assert edited(new, "f", {("a", "GPU-a"): Use.INFERENCE}) == old


def test_a_use_that_says_training_goes_with_the_next_move() -> None:
    text = f"{HOST}    gpus: [{{uuid: GPU-a, use: training}}]\n"
    away = edited(text, "f", {("a", "GPU-a"): Use.NONE})
    assert away == text.replace("training", "none")
    assert edited(away, "f", {("a", "GPU-a"): Use.TRAINING}) == text.replace(", use: training", "")


SHARED = [
    ("the list", "  a: {address: 10.0.0.1, roles: [manager], gpus: &g [{index: 0}]}\n  b: {address: 10.0.0.2, gpus: *g}\n", 3, "hosts.a.gpus"),
    ("the number", "  a: {address: 10.0.0.1, roles: [manager], gpus: &g 1}\n  b: {address: 10.0.0.2, gpus: *g}\n", 3, "hosts.a.gpus"),
    ("the number from an alias", "  b: {address: 10.0.0.1, roles: [manager], gpus: &g 1}\n  a: {address: 10.0.0.2, gpus: *g}\n", 4, "hosts.a.gpus"),
    ("the entry", "  a: {address: 10.0.0.1, roles: [manager], gpus: [&g {index: 0}]}\n  b: {address: 10.0.0.2, gpus: [*g]}\n", 3, "hosts.a.gpus[0].use"),
    ("a merged host", "  b: &b {address: 10.0.0.1, roles: [manager], gpus: 1}\n  a: {<<: *b, address: 10.0.0.2}\n", 4, "hosts.a.gpus"),
    ("a merged use", "  b: {address: 10.0.0.1, roles: [manager], gpus: [{index: 0, <<: &u {use: none}}]}\n  a:\n    address: 10.0.0.2\n    gpus:\n      - {index: 0, <<: *u}\n", 7, "hosts.a.gpus[0].use"),
    ("the use", "  b: {address: 10.0.0.1, roles: [manager], gpus: [{index: 0, use: &u none}]}\n  a: {address: 10.0.0.2, gpus: [{index: 0, use: *u}]}\n", 4, "hosts.a.gpus[0].use"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "hosts", "line", "place"), SHARED, ids=[s[0] for s in SHARED])
def test_what_is_written_once_for_several_is_refused(
    project: Project, name: str, hosts: str, line: int, place: str
) -> None:
    project.write(f"cluster: lab\nhosts:\n{hosts}", {})
    before = snapshot(project.folder)
    result = project.kit("split", "--infer", "a:0", "--yes")
    assert (result.status, result.out) == (2, "")
    found = re.fullmatch(
        r"inventory\.yaml:(\d+): (\S+): several places share this text \(an anchor, an alias or a "
        r"merge\), so a change would affect all of them; write the GPUs of a out, then split again\n",
        result.err,
    )
    assert found, result.err
    assert found[2] == place
    assert int(found[1]) <= line
    assert snapshot(project.folder) == before


UNUSUAL = [
    ("- ? uuid\n        : GPU-a", "kit: inventory.yaml: the split cannot be written into this text: the result would be invalid:"),
    ("- uuid: |-\n          GPU-a", "inventory.yaml:6: hosts.a.gpus[0]: there is no line in this entry that `use` could be added to; write it as `- {uuid: …, use: inference}`"),
    ("[uuid: GPU-a]", "kit: inventory.yaml: the split cannot be written into this text: other values would change, too"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "message"), UNUSUAL)
def test_texts_that_nobody_writes_stay_as_they_are(
    project: Project, entry: str, message: str
) -> None:
    before = snapshot(project.write(f"{HOST}    gpus:\n      {entry}\n", {}).folder)
    result = project.kit("split", "--infer", "a:0", "--yes")
    assert (result.status, result.out) == (2, "")
    assert result.err.splitlines()[0] == message
    assert snapshot(project.folder) == before


# ---- any text

COMMENTS = ["", "", "  # grüße", " # {use: inference}", "  # - 'x\""]


def entries(draw: st.DrawFn, number: int, *, by_index: bool) -> Iterator[list[tuple[str, str]]]:
    for position in range(draw(st.integers(1, 4))):
        name = ("index", str(position)) if by_index else ("uuid", f"GPU-{number}-{position}")
        pairs = [name]
        if draw(st.booleans()):
            pairs.append(("model", draw(st.sampled_from(["X", "TITAN RTX", '"漢 #1"', "'a: b'"]))))
        if draw(st.booleans()):
            pairs.insert(draw(st.integers(0, len(pairs))), ("memory", "24GiB"))
        use = draw(st.sampled_from([None, None, "inference", "spare", "none"]))
        if use:
            quote = draw(st.sampled_from(["", "", '"', "'"]))
            at = draw(st.sampled_from([len(pairs), len(pairs), 0]))
            pairs.insert(at, ("use", f"{quote}{use}{quote}"))
        yield pairs


def flow(draw: st.DrawFn, pairs: list[tuple[str, str]]) -> str:
    style = draw(st.sampled_from(["{%s}", "{%s}", "{ %s }", "{%s,}"]))
    glue = draw(st.sampled_from([", ", ", ", ",  ", ",\n          ", ", # in\n          "]))
    key = draw(st.sampled_from(["%s: %s", "%s: %s", '"%s": %s']))
    return style % glue.join(key % pair for pair in pairs)


def listed(draw: st.DrawFn, written: list[list[tuple[str, str]]]) -> str:
    """Write a list of GPUs in one of many styles."""
    comment = st.sampled_from(COMMENTS)
    kind = draw(st.sampled_from(["inline", "lines", "flow", "flow", "block", "block"]))
    if kind == "inline":
        return f" [{', '.join(flow(draw, pairs) for pairs in written)}]{draw(comment)}\n"
    if kind == "lines":
        rows = [f"      {flow(draw, pairs)},{draw(comment)}\n" for pairs in written]
        return f" [{draw(comment)}\n{''.join(rows)}    ]\n"
    text = f"{draw(comment)}\n"
    for pairs in written:
        text += draw(st.sampled_from(["", "", "\n", "      # a line of its own\n"]))
        if kind == "flow":
            text += f"      - {flow(draw, pairs)}{draw(comment)}\n"
            continue
        gap = draw(st.sampled_from([" ", " ", "   "]))
        for position, (key, value) in enumerate(pairs):
            lead = f"      -{gap}" if not position else " " * (7 + len(gap))
            text += f"{lead}{key}: {value}{draw(comment)}\n"
    return text


@st.composite
def inventories(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(["", "# grüße\n", "---\n", "\ufeff"])) + "cluster: lab\nhosts:\n"
    for number in range(draw(st.integers(1, 3))):
        ranged = draw(st.booleans())
        name, address = f"h{number}", f"10.0.{number}.1"
        if ranged:
            name, address = f'"h{number}[1-3]"', f"10.0.{number}.[1-3]"
        by_index = ranged or draw(st.booleans())
        if by_index and draw(st.booleans()):
            gpus = f" {draw(st.integers(1, 4))}{draw(st.sampled_from(COMMENTS))}\n"
        else:
            gpus = listed(draw, list(entries(draw, number, by_index=by_index)))
        roles = "" if number else "    roles: [manager]\n"
        text += f"  {name}:\n{roles}    gpus:{gpus}    address: {address}\n"
    if draw(st.booleans()):
        head, _, last = text.rstrip("\n").rpartition("    address")
        text = f"{head}    address{last}"
    return text.replace("\n", draw(st.sampled_from(["\n", "\n", "\r\n"])))


def comments(text: str) -> list[str]:
    return re.findall(
        r"# (?:grüße|\{use: inference\}|- 'x\"|in|a line of its own)(?=\r?\n|$)", text
    )


@settings(max_examples=300)
@given(text=inventories(), data=st.data())
def test_any_split_and_its_reverse_give_back_the_bytes(text: str, data: st.DataObject) -> None:
    inventory = inventory_of(text)
    every = slots(inventory)
    picked = data.draw(st.lists(st.sampled_from(every), unique_by=lambda slot: slot.key))
    uses = st.sampled_from(list(Use))
    split: dict[Key, Use] = {slot.key: data.draw(uses) for slot in picked}
    split = {s.key: split[s.key] for s in picked if split[s.key] is not s.gpu.use}
    new = edited(text, "f", split)
    assert inventory_of(new) == moved(inventory, split)
    assert comments(new) == comments(text)
    assert edited(new, "f", {}) == new
    back: Mapping[Key, Use] = {slot.key: slot.gpu.use for slot in every if slot.key in split}
    again = edited(new, "f", back)
    assert inventory_of(again) == inventory
    if not plain_list(text):
        assert again == text
    done = moves(inventory, split)
    undo: dict[str, tuple[str, ...]] = {"--infer": (), "--train": (), "--spare": (), "--none": ()}
    for option, selector in reverse(done):
        undo[option] += (selector,)
    wanted = Selectors(undo["--infer"], undo["--train"], undo["--spare"], undo["--none"])
    assert select(inventory_of(new), wanted, always) == back


def plain_list(text: str) -> bool:
    """Whether a list has no more information than `gpus: 2`, which an undo restores."""
    return re.search(r"\[\{index: 0\}(, \{index: \d\})*\]", text) is not None


# ---- the command


def test_the_table_says_who_has_what(project: Project) -> None:
    result = project.write(jobs={"a": JOB}).kit("split")
    assert (result.status, result.err) == (0, "")
    assert [line.split() for line in result.out.splitlines() if "GPU-" in line] == [
        ["pc1", "0", "-", "24GiB", "GPU-a", "training", "job", "a"],
        ["pc2", "0", "-", "-", "GPU-b", "training", "job", "a"],
        ["pc2", "1", "-", "-", "GPU-c", "inference", "-"],
    ]


def test_the_table_as_json(project: Project) -> None:
    result = project.write(jobs={"a": JOB + "hosts: {names: [pc2]}\n"}).kit("split", "--json")
    document = json.loads(result.out)
    assert [(gpu["id"], gpu["use"], gpu["has"]) for gpu in document["gpus"]] == [
        ("GPU-a", "training", []),
        ("GPU-b", "training", ["job a"]),
        ("GPU-c", "inference", []),
    ]
    assert document["now"]["uses"] == {"training": 2, "inference": 1, "spare": 0, "none": 0}


def test_a_range_is_a_row_for_each_gpu(project: Project) -> None:
    result = project.write(POOL, {"j": COMMAND}).kit("split")
    assert len([line for line in result.out.splitlines() if "gpu001 … gpu004 (4)" in line]) == 2


SPLIT = INVENTORY.replace("{uuid: GPU-b}", "{uuid: GPU-b, use: inference}").replace(
    "{uuid: GPU-c, use: inference}", "{uuid: GPU-c}"
)


def test_a_split_and_its_undoing(project: Project) -> None:
    project.write()
    path = project.folder / "inventory.yaml"
    path.chmod(0o640)
    result = project.kit("split", "--infer", "pc2:0", "--train", "pc2:GPU-c", "--yes")
    assert (result.status, result.err) == (0, "")
    assert path.read_text() == SPLIT
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in project.folder.iterdir()) == ["inventory.yaml", "jobs"]
    assert "inventory.yaml: 2 GPUs moved\n" in result.out
    assert "now:  kit render && kit deploy " in result.out
    (undo,) = re.findall(r"^undo: kit (.*)$", result.out, re.MULTILINE)
    assert undo == "split --train pc2:0 --infer pc2:1"
    assert project.kit(*undo.split(), "--yes").status == 0
    assert path.read_text() == INVENTORY


def test_a_long_way_back_is_gits(project: Project) -> None:
    hosts = "".join(f"  n{i}: {{address: 10.0.0.{i}, gpus: 2}}\n" for i in range(1, 11))
    project.write(f"cluster: lab\nhosts:\n  m: {{address: 10.0.1.1, roles: [manager]}}\n{hosts}")
    wanted = [word for i in range(1, 11) for word in ("--infer", f"n{i}:1")]
    result = project.kit("split", *wanted, "--yes")
    assert result.out.endswith(
        "undo: git checkout -- inventory.yaml   (if it was committed before)\n"
    )


def test_before_and_after_are_shown(project: Project) -> None:
    job = JOB + "  learning_rate: 0.1\nreference_batch: 128\nhosts: {min: 1}\n"
    result = project.write(jobs={"digits": job}).kit("split", "--infer", "pc1", "--dry-run")
    rows = [re.split(r"  +", line.strip()) for line in result.out.splitlines()]
    for row in (
        ["pc1", "0", "-", "24GiB", "GPU-a", "training → inference"],
        ["GPUs", "for training", "2", "1"],
        ["for inference", "1", "2"],
        ["job digits", "GPUs", "2", "1"],
        ["hosts", "pc1, pc2", "pc2"],
        ["global batch", "128", "64"],
        ["learning rate", "0.1", "0.1, suggested 0.05"],
    ):
        assert row in rows


def test_a_dry_run_writes_nothing_and_shows_the_difference(project: Project) -> None:
    before = snapshot(project.write().folder)
    result = project.kit("split", "--infer", "pc2:0", "--dry-run")
    assert (result.status, result.err) == (0, "")
    assert (
        "--- a/inventory.yaml\n+++ b/inventory.yaml\n@@ -9,6 +9,6 @@\n"
        "   pc2:\n     address: 192.168.8.114\n     gpus:\n"
        "-      - {uuid: GPU-b}\n"
        "+      - {uuid: GPU-b, use: inference}\n"
        "       - {uuid: GPU-c, use: inference}\n"
        " network: {speed: 1Gbit}\n"
    ) in result.out
    assert result.out.endswith("command to undo it: kit split --train pc2:0\n")
    assert snapshot(project.folder) == before


def test_json_tells_what_changes(project: Project) -> None:
    before = snapshot(project.write().folder)
    arguments = ["split", "--infer", "pc2:0", "--train", "pc2:1", "--json"]
    for last, written in (("--dry-run", False), ("--yes", True)):
        document = json.loads(project.kit(*arguments, last).out)
        assert document["written"] is written
        assert (snapshot(project.folder) != before) is written
        assert [(one["id"], one["before"], one["after"]) for one in document["changed"]] == [
            ("GPU-b", "training", "inference"),
            ("GPU-c", "inference", "training"),
        ]
        assert document["before"]["jobs"][0]["gpus"] == document["after"]["jobs"][0]["gpus"] == 2
        assert document["undo"] == "kit split --train pc2:0 --infer pc2:1"
    again = json.loads(project.kit(*arguments, "--yes").out)
    assert (again["changed"], again["written"], again["undo"]) == ([], False, None)


def test_json_asks_nobody(project: Project) -> None:
    result = project.write().kit("split", "--infer", "0", "--json")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("kit: --json cannot ask for confirmation\nadd --yes, or --dry-run")


def test_without_a_terminal_nobody_says_yes(project: Project) -> None:
    before = snapshot(project.write().folder)
    result = kit_process(project.folder, "split", "--infer", "0")
    assert result.status == 2
    assert (
        result.err
        == "kit: without a terminal kit cannot ask for confirmation\nread the tables above, then add --yes\n"
    )
    assert "inference → training" in result.out
    assert snapshot(project.folder) == before


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 130)])
def test_somebody_is_asked(project: Project, answer: str, status: int) -> None:
    before = snapshot(project.write().folder)
    with (
        mock.patch("sys.stdin.isatty", return_value=True),
        mock.patch("click.termui.visible_prompt_func", return_value=answer),
    ):
        result = project.kit("split", "--infer", "0")
    assert result.status == status
    assert (snapshot(project.folder) == before) is (answer == "n")


def test_a_split_that_changes_nothing(project: Project) -> None:
    before = snapshot(project.write().folder)
    for arguments in (["--infer", "pc2:1"], ["--infer", "1"], ["--train", "pc1"]):
        result = project.kit("split", *arguments)
        assert (result.status, result.err) == (0, "")
        assert result.out == "nothing to do: every GPU already has the requested use\n"
    assert snapshot(project.folder) == before


UNFIT = [
    (["--infer", "pc1"], JOB + "hosts: {min: 2}\n", "jobs/j.yaml:7: hosts.min: the job wants at least 2 hosts, 1 can take part; write 1"),
    (["--infer", "all"], JOB, "jobs/j.yaml:1: no host has a GPU for training; give a host `gpus:` in the inventory, or set `use: training`"),
    (["--none", "pc2:0"], JOB + "hosts: {names: [pc2]}\n", "jobs/j.yaml:7: hosts.names[0]: pc2 has no GPU for training; leave it out, or set `use: training`"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "job", "message"), UNFIT)
def test_a_split_that_a_job_cannot_bear_is_refused(
    project: Project, arguments: list[str], job: str, message: str
) -> None:
    before = snapshot(project.write(jobs={"j": job}).folder)
    result = project.kit("split", *arguments, "--yes")
    assert (result.status, result.out) == (2, "")
    assert result.err == (
        "kit: this split is not made: the jobs do not fit the remaining GPUs:\n"
        f"{message}\nnothing was written\n"
    )
    assert snapshot(project.folder) == before


def test_a_split_may_be_the_cure(project: Project) -> None:
    project.write(jobs={"j": JOB + "hosts: {names: [pc2], gpus_per_host: 2}\n"})
    assert project.kit("plan").status == 2
    result = project.kit("split", "--train", "pc2", "--yes")
    assert (result.status, result.err) == (0, "")
    assert "GPUs" in result.out
    assert project.kit("plan").status == 0


@pytest.mark.parametrize("spelt", ["0x2", "0o2"])
def test_a_number_that_no_undo_gives_back_is_refused(project: Project, spelt: str) -> None:
    text = f"cluster: lab\nengine: compose\nhosts:\n  a: {{address: 10.0.0.1, gpus: {spelt}}}\n"
    before = snapshot(project.write(text).folder)
    result = project.kit("split", "--infer", "a:0", "--yes")
    assert result.status == 2
    assert "4: hosts.a.gpus: a split replaces this number; write 2, so that" in result.err
    assert snapshot(project.folder) == before


def test_gpus_known_by_number_are_split(project: Project) -> None:
    text = "cluster: lab\nengine: compose\nhosts:\n  ws1: {address: 10.0.0.1, gpus: 3}  # one machine\n"
    path = project.write(text).folder / "inventory.yaml"
    assert project.kit("split", "--infer", "1", "--yes").status == 0
    assert path.read_text() == text.replace(
        "gpus: 3", "gpus: [{index: 0}, {index: 1}, {use: inference, index: 2}]"
    )
    assert [gpu.id for part in project.plan().jobs[0].placements for gpu in part.gpus] == ["0", "1"]
    assert project.kit("split", "--infer", "0", "--yes").status == 0
    assert path.read_text() == text


def test_an_inventory_elsewhere_and_behind_a_link(project: Project, tmp_path: Path) -> None:
    project.write()
    real, link = tmp_path / "real.yaml", project.folder / "inventory.yaml"
    link.rename(real)
    link.symlink_to(real)
    result = project.kit("split", "-i", "inventory.yaml", "--train", "GPU-c", "--yes")
    assert result.status == 0
    assert link.is_symlink()
    assert real.read_text() == INVENTORY.replace(", use: inference", "")
    result = project.kit(
        "split", "-i", "./real.yaml", "--jobs", "jobs", "--infer", "GPU-c", "--yes"
    )
    assert "undo: kit split -i real.yaml --jobs jobs --train pc2:1\n" in result.out


def test_a_file_that_changed_meanwhile_stays(project: Project) -> None:
    path = project.write().folder / "inventory.yaml"

    def _changes(*_: object, **__: object) -> None:
        path.write_text(INVENTORY + "# mine\n")

    with mock.patch("kit.commands.split._confirm", _changes):
        result = project.kit("split", "--infer", "0")
    assert (result.status, result.err) == (
        1,
        "kit: inventory.yaml was changed in the meantime\nrun it again\n",
    )
    assert path.read_text() == INVENTORY + "# mine\n"


def test_an_edit_that_would_do_more_is_not_written(project: Project) -> None:
    before = snapshot(project.write().folder)
    for wrong in (INVENTORY, INVENTORY.replace("24GiB", "23GiB"), "cluster: [\n"):
        with mock.patch("kit.split.propose.edited", lambda *_, wrong=wrong: wrong):
            result = project.kit("split", "--infer", "0", "--yes")
        assert (result.status, result.out) == (2, "")
        assert result.err.startswith(
            "kit: inventory.yaml: the split cannot be written into this text: "
        )
    assert snapshot(project.folder) == before


# ---- servers


@pytest.mark.parametrize(
    ("job", "suggested"),
    [
        (JOB + "  learning_rate: 0.1\n", 0.05),  # Half of the GPUs, half of the rate.
        (JOB, None),  # The recipe's rate follows by itself.
        (JOB + "reference_batch: 64\n", None),  # It is the batch after the split.
        (JOB.replace("  epochs", "  optimizer: adam\n  epochs"), None),
    ],
)
def test_a_new_batch_suggests_another_rate(
    project: Project, job: str, suggested: float | None
) -> None:
    project.write(jobs={"digits": job})
    done = json.loads(project.kit("split", "--infer", "pc2:0", "--json", "--dry-run").out)
    (before,), (after,) = done["before"]["jobs"], done["after"]["jobs"]
    assert (before["batch"]["total"], after["batch"]["total"]) == (128, 64)
    assert after["batch"]["suggested_learning_rate"] == suggested


SERVED = {"demo": SERVER}


def test_a_server_keeps_its_last_gpu(project: Project) -> None:
    before = snapshot(project.write(servers=SERVED).folder)
    assert re.search(r"GPU-c +inference +serve-demo", project.kit("split").out)
    result = project.kit("split", "--train", "pc2:1", "--yes")
    assert (result.status, result.out) == (2, "")
    assert result.err == (
        "kit: this split is not made: it leaves serve-demo without a GPU; nothing was written\n"
        "leave a GPU for inference, or leave every server idle with --infer 0\n"
    )
    assert snapshot(project.folder) == before


def test_what_undoes_a_servers_first_gpu_is_possible(project: Project) -> None:
    project.write(INVENTORY.replace(", use: inference", ""), servers=SERVED)
    before = snapshot(project.folder)
    done = project.kit("split", "--infer", "pc2:1", "--yes").out
    assert "undo: kit split --infer 0\n" in done
    assert project.kit("split", "--infer", "0", "--yes").status == 0
    assert snapshot(project.folder) == before


def test_servers_are_idle_where_that_is_meant(project: Project) -> None:
    result = project.write(servers=SERVED).kit("split", "--infer", "0", "--yes")
    assert result.status == 0
    assert re.search(r"serve-demo +GPUs, serves digits +1 on pc2 +idle", result.out)


def test_a_number_leaves_a_server_its_gpu(project: Project) -> None:
    text = INVENTORY.replace("{uuid: GPU-a, ", "{uuid: GPU-a, use: inference, ")
    jobs = {"digits": JOB}
    named = {"demo": SERVER + "hosts: {names: [pc2]}\n"}
    project.write(text.replace("{uuid: GPU-c", "{uuid: GPU-c, model: H100"), jobs, named)
    assert project.kit("split", "--infer", "1", "--yes").status == 0
    assert "GPU-c, model: H100, use: inference" in (project.folder / "inventory.yaml").read_text()


PROXY = SERVER + "proxy: {port: 80, host: pc1}\n"


@pytest.mark.parametrize(
    ("server", "moves", "said"),
    [
        (SERVER, "pc1:0 pc2:1", "at most 60 s until its GPUs are free, then its start on pc1, "),
        (SERVER, "pc2:0 pc2:1", "then its start on pc2, "),
        (SERVER, "pc1:0", ""),  # pc2 goes on.
        (PROXY, "pc1:0 pc2:1", ""),  # pc2 answers until pc1 does.
        (PROXY, "pc2:0 pc2:1", "no order of steps avoids this, because no other host serves it\n"),
    ],
)
def test_a_split_tells_which_server_answers_nowhere(
    server: str, moves: str, said: str, project: Project
) -> None:
    project.write(servers={"demo": server})
    infer, *train = moves.split()
    options = ["split", "--infer", infer, *(word for gpu in train for word in ("--train", gpu))]
    shown = project.kit(*options, "--dry-run").out
    assert ("serve-demo is down during this split: " in shown) is bool(said)
    assert said in shown
    gaps = json.loads(project.kit(*options, "--json", "--dry-run").out)["gaps"]
    assert [gap["server"] for gap in gaps] == ["serve-demo"] * bool(said)


# ---- the printed undo

USES = st.sampled_from(
    ["", ", use: none", ", use: spare", ", use: inference", ", use: training", ", use: 'none'"]
)
SPELT = ["2", "0x2", "&g 2", "[{index: 0}, {index: 1}]", "&g [{index: 0}, {index: 1, use: none}]"]


@settings(max_examples=60)
@given(
    uses=st.lists(USES, min_size=3, max_size=3),
    spelt=st.sampled_from(SPELT),
    wanted=st.lists(
        st.tuples(
            st.sampled_from(["--infer", "--train", "--spare", "--none"]),
            st.sampled_from(["a:0", "a:1", "a:2", "b:0", "b:1", "a", "b"]),
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda each: each[1],
    ),
)
def test_the_printed_undo_gives_the_inventory_back(
    tmp_path_factory: pytest.TempPathFactory,
    uses: list[str],
    spelt: str,
    wanted: list[tuple[str, str]],
) -> None:
    listed = "".join(f"      - {{uuid: GPU-{n}{use}}}\n" for n, use in enumerate(uses))
    text = (
        "cluster: lab\nengine: compose\nhosts:\n"
        f"  a:\n    address: 10.0.0.1\n    roles: [manager]\n    gpus:\n{listed}"
        f"  b: {{address: 10.0.0.2, gpus: {spelt}}}\n"
    )
    project = Project(tmp_path_factory.mktemp("undo")).write(text, servers={"digits": SERVER})
    options = [word for pair in wanted for word in pair]
    result = project.kit("split", *options, "--yes", "--json")
    if result.status:
        return  # the split itself is refused
    undo = json.loads(result.out)["undo"]
    if undo is None:
        return
    back = project.kit(*shlex.split(undo)[1:], "--yes")
    assert (back.status, back.err) == (0, "")
    after = (project.folder / "inventory.yaml").read_text()
    if any("training" in use for use in uses):  # At the end of an entry, kit takes it for its own.
        assert inventory_of(after) == inventory_of(text)
    else:
        assert after == text


def test_a_host_becomes_a_spare_and_trains_again(project: Project) -> None:
    text = (
        "cluster: lab\nengine: compose\nhosts:\n"
        "  a: {address: 10.0.0.1, roles: [manager], gpus: 1}\n"
        "  b: {address: 10.0.0.2, gpus: 2}\n"
    )
    project.write(text)
    result = project.kit("split", "--spare", "b", "--yes", "--json")
    assert (result.status, result.err) == (0, "")
    undo = json.loads(result.out)["undo"]
    assert undo == "kit split --train b:0-1"
    (job,) = project.plan().jobs
    assert [spare.host.name for spare in job.spares] == ["b"]
    assert job.world_size == 1
    # A host is a spare as a whole, and no split of others takes it.
    half = project.kit("split", "--train", "b:0", "--yes")
    assert (half.status, "a spare is a whole host" in half.err) == (2, True), half.err
    assert "beside 2 GPUs that this command" in project.kit("split", "--infer", "2", "--yes").err
    assert project.kit(*shlex.split(undo)[1:], "--yes").status == 0
    assert (project.folder / "inventory.yaml").read_text() == text


def test_the_undo_of_a_first_split_gives_none_back(project: Project) -> None:
    text = INVENTORY.replace("use: inference", "use: none")
    project.write(text, servers={"digits": SERVER})
    result = project.kit("split", "--infer", "pc2:1", "--yes")
    assert result.out.endswith("undo: kit split --infer 0 --none pc2:1\n")
    assert project.kit("split", "--infer", "0", "--none", "pc2:1", "--yes").status == 0
    assert (project.folder / "inventory.yaml").read_text() == text


@pytest.mark.parametrize("option", ["--infer", "--train", "--spare", "--none"])
def test_a_cluster_without_gpus_has_none_to_move(project: Project, option: str) -> None:
    project.write("cluster: lab\nhosts: {pc1: {address: 192.168.8.151}}\n", {})
    result = project.kit("split", option, "all")
    assert (result.status, result.err) == (
        2,
        f"inventory.yaml:2: hosts: {option} all: no host has a GPU; give a host `gpus:`\n",
    )
