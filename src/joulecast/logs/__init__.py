"""Logs of other tools, read into runs.

The input is a file or folder that MLPerf, nvidia-smi, perun, CodeCarbon, Zeus, jpwr, SLURM, Prometheus or a
CSV program wrote. Each has a module of its name. The output is runs. Each has the doubts about its log.
"""
