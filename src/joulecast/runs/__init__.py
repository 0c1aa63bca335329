"""Runs, the table with one row for each run, the reasons to leave runs out, and the errors of predictions.

The input is a folder with ``run.json`` and Parquet frames. The output is four things: typed records
(``record``); the runs table (``runs_table``, ``observations``), with the joules of each run
(``metered_power``, ``integration``); the reasons why fits leave runs out (``left_out``); and predictions that
are joined with runs (``judging``).
"""
