"""What kit notes in a namespace, against a stand-in that keeps ConfigMaps as the API server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from kit.errors import KitError
from kit.runtime.history import Deployment
from kit.targets.kubernetes.errors import KubectlError
from kit.targets.kubernetes.kubectl import Kubectl
from kit.targets.kubernetes.registers import KEPT, Registers


class ConfigMaps:
    """The calls of kubectl that registers make."""

    def __init__(self) -> None:
        self.all: dict[str, Any] = {}

    def create(self, document: Mapping[str, Any]) -> None:
        name = document["metadata"]["name"]
        if name in self.all:
            raise KubectlError("", "", "Error from server (AlreadyExists)", 1)
        self.all[name] = document

    def read(self, kind: str, name: str) -> Any:
        assert kind == "configmap"
        if name not in self.all:
            raise KubectlError("", "", "Error from server (NotFound)", 1)
        return self.all[name]

    def run(self, verb: str, *words: str, stdin: str = "") -> str:
        if verb == "delete":
            self.all.pop(words[1], None)
        else:
            document = json.loads(stdin)
            self.all[document["metadata"]["name"]] = document
        return ""


@pytest.fixture
def maps() -> ConfigMaps:
    return ConfigMaps()


def registers(maps: ConfigMaps) -> Registers:
    return Registers(cast(Kubectl, maps), "lab")


def test_a_second_deploy_meets_the_lock(maps: ConfigMaps) -> None:
    with registers(maps).locked():
        with pytest.raises(KitError, match="the ConfigMap kit-lab-lock"), registers(maps).locked():
            pass
        assert list(maps.all) == ["kit-lab-lock"]
    assert maps.all == {}


def test_a_broken_lock_of_another_stays(maps: ConfigMaps) -> None:
    with registers(maps).locked():
        registers(maps).break_lock()
        theirs = {"metadata": {"name": "kit-lab-lock"}, "data": {"holder": '{"by": "ann@desk"}'}}
        maps.create(theirs)
    assert maps.all == {"kit-lab-lock": theirs}


def test_the_newest_deployments_are_kept(maps: ConfigMaps) -> None:
    kept = registers(maps)
    for moment in range(KEPT + 5):
        kept.record_deployment(Deployment("j", moment, "", "", "", ""))
    assert [each.time for each in kept.history()] == list(range(KEPT + 4, 4, -1))
