"""Runs, the table with one row for each run, which runs are left out, and how predictions are judged by them.

The input is a folder with ``run.json`` and Parquet frames. The output is typed records (``record``), the runs
table (``runs_table``, ``observations``) with the joules of each run (``metered_power``, ``integration``), the
reasons of runs that no fit sees (``left_out``), and predictions joined with runs (``judging``).
"""
