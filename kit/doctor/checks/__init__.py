"""The checks: from facts and the plan to findings. Each is a pure function."""
