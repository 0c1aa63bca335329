"""Pages for people: the overview of a campaign's results as one file that stands alone.

``report.results`` reads what lies in a results folder, whatever is missing; ``report.figures`` draws;
``report.answers``, ``measured_runs`` and ``savings`` put numbers into sentences and tables; ``overview``
makes the page.
"""
