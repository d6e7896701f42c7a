"""Errors of kubectl, with corrections. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kit.errors import KitError, one_line
from kit.model import Kubernetes

_UNKNOWN = "(?i)(doesn't have a resource type|no matches for kind) [\"']?"
"""The beginning of kubectl's message for a kind that the cluster lacks."""
_FORBIDDEN = re.compile(
    r'User "([^"]+)" cannot (\S+) resource "([^"]+)"(?: in API group "([^"]*)")?'
)

CONFLICT = 'conflicts? with "'
"""Of fields that belong to others: `(Conflict)` alone means that an object was just changed."""
EARLY = (
    "failed calling webhook",
    # Of Kubeflow Trainer, until it has seen the TrainingRuntime that was applied with a TrainJob.
    "must be created before",
    r"denied the request: runtime '[^']*' not found",
)
"""Refusals of webhooks that may accept the same objects some seconds later."""


class KubectlError(KitError):
    """kubectl has failed with an exit `status`; `stderr` is its error output."""

    def __init__(self, message: str, hint: str, stderr: str, status: int) -> None:
        super().__init__(message, hint)
        self.stderr, self.status = stderr, status

    @property
    def missing(self) -> bool:
        """Whether the object does not exist."""
        return "(NotFound)" in self.stderr

    @property
    def early(self) -> bool:
        """Whether a webhook may accept the same objects some seconds later."""
        return any(re.search(pattern, self.stderr) for pattern in EARLY)

    @property
    def unchangeable(self) -> bool:
        """Whether the fields cannot be changed, or belong to others."""
        return bool(re.search(f"field is immutable|{CONFLICT}", self.stderr))

    @property
    def exists(self) -> bool:
        """Whether the object to create exists already."""
        return "(AlreadyExists)" in self.stderr


class WrongClusterError(KubectlError):
    """The inventory names a cluster or a namespace that does not exist."""

    exit_status = 2


def error_of(
    settings: Kubernetes, role: str, words: Sequence[str], stderr: str, status: int
) -> KubectlError:
    """Return the error of a call; `role` is the file with the rights that kit needs."""
    text = stderr.strip()
    if re.search(CONFLICT, text):
        return _conflict(text, status)
    if forbidden := _FORBIDDEN.findall(text):
        return _forbidden(settings, role, forbidden, text, status)
    said = one_line(text.splitlines()[-1] if text else "without a message")
    what = f"kubectl {words[0]}: {said}"
    for pattern, hint in _mistakes(settings).items():
        if re.search(pattern, text):
            return WrongClusterError(what, hint, stderr, status)
    hint = next((hint for pattern, hint in HINTS.items() if re.search(pattern, text)), "")
    return KubectlError(what, hint, stderr, status)


HINTS = {
    "exceeded quota": "see the quota of the namespace: kubectl describe quota",
    "violates PodSecurity": "the namespace admits no such pods: see its label "
    "pod-security.kubernetes.io/enforce",
    "failed calling webhook": "see whether the controller of that webhook runs: kubectl get pods "
    "--all-namespaces",
    "Unauthorized": "log in again; `kubectl auth whoami` shows as whom",
    "connection refused|no such host|i/o timeout|Unable to connect|deadline exceeded|did not "
    "receive|etcdserver|TLS handshake timeout": "see whether the cluster answers: kubectl get "
    "--raw /readyz; what runs there continues",
}


def _mistakes(settings: Kubernetes) -> dict[str, str]:
    namespace, kind = settings.namespace, settings.job_kind
    return {
        rf"{_UNKNOWN}(podmonitor|prometheusrule)": "the cluster lacks Prometheus Operator: leave "
        "`kubernetes: {prometheus_operator: …}` out",
        rf"{_UNKNOWN}resourceclaimtemplate": "claims need Kubernetes 1.34 and a DRA driver: leave "
        "`kubernetes: {device_class: …}` out",
        _UNKNOWN: f"let an administrator install what has {kind}, in the version that the file "
        "names, or write `kubernetes: {job_kind: Job}`",
        "context .* does not exist": "correct `kubernetes: {context: …}` in the inventory: "
        "kubectl config get-contexts -o name",
        r"(stat|open) .*: no such file": "correct `kubernetes: {kubeconfig: …}` in the inventory",
        f'namespaces "{namespace}" not found': f"create it: kubectl create namespace {namespace}; "
        "or correct `kubernetes: {namespace: …}` in the inventory",
    }


def _forbidden(
    settings: Kubernetes,
    role: str,
    found: Sequence[tuple[str, str, str, str]],
    text: str,
    status: int,
) -> KubectlError:
    user = found[0][0]
    if "at the cluster scope" in text:
        _, verb, resource, _ = found[0]
        hint = f"ask an administrator: kubectl create clusterrole kit --verb={verb} "
        hint += f"--resource={resource}, and a ClusterRoleBinding"
        return KubectlError(one_line(f"{user} may not {verb} {resource}"), hint, text, status)
    acts: dict[str, list[str]] = {}
    for _, verb, resource, group in found:
        acts.setdefault(verb, []).append(f"{resource}.{group}".removesuffix("."))
    may_not = "; ".join(f"{verb} {', '.join(dict.fromkeys(all_))}" for verb, all_ in acts.items())
    what = f"{user} may not {may_not} in the namespace {settings.namespace}"
    hint = (
        f"{role} has the rights that kit needs: name {user} in `kubernetes: {{deployers: …}}`, and "
        "let an administrator apply that file"
    )
    return KubectlError(one_line(what), one_line(hint), text, status)


def _conflict(text: str, status: int) -> KubectlError:
    """Return the error for fields that somebody else has changed."""
    managers = sorted(set(re.findall(f'{CONFLICT}([^"]+)"', text)))
    fields = re.findall(r"^\s*-?\s*(\.\S+)$", text, re.MULTILINE)
    fields += re.findall(r": (\.\S+)$", text, re.MULTILINE)
    what = f"{', '.join(managers) or 'somebody'} has changed {', '.join(dict.fromkeys(fields))}"
    hint = (
        "undo that change, or take the fields over: kubectl apply --server-side "
        "--field-manager=kit --force-conflicts -k <the rendered tree>"
    )
    return KubectlError(one_line(what), hint, text, status)
