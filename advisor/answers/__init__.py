"""The answer to a job, made once for the terminal, the pages and the report. Pure: no I/O, no clock."""
