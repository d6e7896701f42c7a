"""The way from a plan to the target that the inventory names."""

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
    """Write a plan in the terms of a target.

    Raises:
        FaultsError: What the plan says cannot be had there, or clashes.
    """
    return LOWER[engine](plan)
