"""Logs of other tools, read into runs.

In: a file or folder that MLPerf, nvidia-smi, perun, CodeCarbon, Zeus, jpwr, SLURM, Prometheus or a CSV
program wrote; each has a module of its name. Out: runs, each with what was doubtful in its log.
"""
