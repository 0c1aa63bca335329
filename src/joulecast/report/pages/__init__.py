"""Pages for people: the overview of a campaign's results as one file that stands alone.

``report.results_folder`` reads what the rules wrote; ``report.figures`` draws; ``savings``,
``cost_and_time`` and ``metered`` put the tables' numbers into words; ``overview`` fills
``templates/overview.html.j2``; its box for own samples and prices is computed in ``templates/overview.js``.
"""
