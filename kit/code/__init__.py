"""The folder with a job's code: which of its files travel, their archive, and its way to hosts."""
