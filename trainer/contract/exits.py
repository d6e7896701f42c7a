"""Exit statuses of the trainer's programs that kit handles, besides 0, 1 and 2."""

NOT_OVER = 75
"""The coordinator has ended before its job: an engine moves it, or hosts will restart the job.
Engines that only restart failed programs must restart it (EX_TEMPFAIL of sysexits.h)."""
