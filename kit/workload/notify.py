"""The receivers that the coordinator of a job notifies: their variable and their secrets."""

from __future__ import annotations

import json
from typing import Any

from kit.model import Receiver, Secret
from kit.plan.work import JobPlan, Plan
from kit.workload.settings import Environment, Variable

NOTIFY = "KIT_NOTIFY"
"""The variable with the receivers, which the launcher reads."""


def notify_secrets(job: JobPlan) -> tuple[Secret, ...]:
    """Return the secrets of a job's receivers, each once."""
    return tuple(dict.fromkeys(secret for each in job.receivers for secret in each.secrets))


def notify_variables(plan: Plan, job: JobPlan) -> Environment:
    """Return the variable of a job's coordinator that names the receivers, if there are any."""
    if not job.receivers:
        return ()
    receivers = [_receiver(each) for each in job.receivers]
    text = json.dumps({"job": job.name, "cluster": plan.cluster, "receivers": receivers})
    why = "It notifies these of the job's end and faults. Secrets are files in /run/secrets."
    return (Variable(NOTIFY, text, why),)


def _receiver(receiver: Receiver) -> dict[str, Any]:
    url = receiver.url
    return {
        **({"secret": url.name} if isinstance(url, Secret) else {"url": url}),
        "on": receiver.on,
        **({"key": receiver.key.name} if receiver.key else {}),
    }
