"""What people read: tables, figures, pages, advice, and the papers' numbers next to ours.

The input is predictions and references. The output is a folder of a table (CSV, Markdown, HTML, Parquet),
a page, or an advice.
"""
