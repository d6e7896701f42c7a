"""Reports: from the records of runs to a page, a summary and JSON."""
