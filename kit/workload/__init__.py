"""The workload: plan entries as parts, descriptions of equal containers that know no target."""
