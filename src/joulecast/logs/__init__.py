"""Logs of other tools, read into runs.

The input is a file or folder that MLPerf, nvidia-smi, perun, CodeCarbon, Zeus, jpwr, SLURM, Prometheus or a
CSV program wrote. For each of these tools, there is a module with its name. The output is runs. If something
in a log is doubtful, the run says so.
"""
