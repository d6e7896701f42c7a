"""Exit statuses of the trainer's programs that kit knows, beside 0, 1 and 2."""

NOT_OVER = 75
"""The coordinator has ended before its job: an engine moves it, or hosts will start the job again.
An engine that restarts failed programs only must start it again (EX_TEMPFAIL of sysexits.h)."""
