"""What people read: tables, figures, pages, advice, and the papers' numbers next to ours.

The input is predictions and references. The output is a table (as CSV, Markdown, HTML and Parquet), a page,
or an advice.
"""
