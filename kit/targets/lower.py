"""The choice of the function that lowers a plan."""

from __future__ import annotations

from kit.model import EngineName
from kit.plan.work import Plan
from kit.targets.compose import lower as compose
from kit.targets.local import lower as local
from kit.targets.lowered import Lowered
from kit.targets.swarm import lower as swarm

LOWER = {
    EngineName.LOCAL: local.lower,
    EngineName.COMPOSE: compose.lower,
    EngineName.SWARM: swarm.lower,
}


def lower(plan: Plan, engine: EngineName) -> Lowered:
    """Lower a plan to the terms of a target.

    Raises:
        FaultsError: The target does not support the plan, or names or ports conflict.
    """
    return LOWER[engine](plan)
