"""What people read: tables, figures, pages, advice, and the papers' numbers next to ours.

In: predictions and references. Out: a folder of a table (CSV, Markdown, HTML, Parquet), a page, an advice.
"""
