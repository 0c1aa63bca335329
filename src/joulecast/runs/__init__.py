"""Runs, the table with one row a run, which of them are left out, and how predictions are judged by them.

In: a folder with ``run.json`` and Parquet frames. Out: typed records (``record``), the runs table (``table``,
``observations``) with the joules of each run (``metered_power``, ``integration``), the reasons of runs that
no fit sees (``left_out``), and predictions joined with runs (``judging``).
"""
