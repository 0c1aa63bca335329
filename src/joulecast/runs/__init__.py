"""Runs: what one training left behind, the setting that it answers, and the table with one row a run.

In: a folder with ``run.json`` and Parquet frames. Out: typed records, and the runs table.
"""
