"""Pages for people: the overview of a campaign's results as one file that stands alone.

``report.results_folder`` reads what the rules wrote, whatever is missing; ``report.figures`` draws;
``savings``, ``cost_and_time`` and ``metered`` put the tables' numbers into words; ``overview`` makes the page.
"""
