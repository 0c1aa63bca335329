"""Logs of other tools, read into runs.

The input is a file or folder of MLPerf, nvidia-smi, perun, CodeCarbon, Zeus, jpwr, SLURM, Prometheus,
Megatron-LM, a training log, or a CSV table. For each of these tools, there is a module with its name. The
output is runs. If something in a log is doubtful, the run says so.
"""
