# ruff: noqa: B018, F821
"""Names that vulture does not see used, each with what uses it. Nothing here runs."""

# Rules of the workflow, which vulture cannot read.
content_version
kept_task_graph
package_version
closing_lines
run_table

# tests/reference.py makes pages of these.
FRAME_MEANINGS
meaning

# Documented in docs/ for users of the library.
forward_flops
log_loss

# In the file of an op database.
dropped

# docs/how-to/cite.md is made of it.
bibtex

# Python, torch, jinja and pydantic look these up by name.
__getattr__
__loader__
call_function
is_compile_supported
device_type
aligned
how_to_read
in_short
spoken
BufferedReader
daemon_threads
disable_nagle_algorithm
energy_covers
request_queue_size
timeout

# The colours that tests judge by their contrast.
PALETTES

# Benchmarks, which are not looked at.
judged_widths
judge_memory
as_plain

# Keys of the configuration, read as plain data by the rules.
gpu_steps
paper_tables

# Choices of the command line: their values are used.
compat

# Fields of what is kept or printed: read as plain data.
lower_points
upper_points
better_share
is_estimated
timed_s
waited_share
longest_gap_s
missed_deadlines
batch_per_rank
why_no_interval
scheduler_job
scheduler_node_of_rank
reference_step_s
recorded_utc
first_run_utc
last_run_utc
joulecast
metric
batch_size_only
power_limit_only

# Typer calls these, by the names of their commands.
export_openmetrics
export_mlflow
export_wandb

# Fields of candidates, written as plain data.
energy_kwh
energy_low_kwh
energy_high_kwh
cost_low
cost_high
co2_low_kg
co2_high_kg

# Notebooks call these.
plot
_repr_html_

# A field of a citation, read by its name.
publisher
url

# Ends of a candidate's interval, looked up by the name of the quantity.
time_high_s
energy_low_j
energy_high_j

# `joulecast measure --capture` names it to the training that it observes.
capture_trained
