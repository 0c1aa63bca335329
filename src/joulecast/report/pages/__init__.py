"""Pages for people: the overview of a campaign's results as one file that stands alone.

``results`` reads what lies in a results folder, whatever is missing; ``energy_figures`` and ``plan_figures``
draw (``charts`` has what they share), ``answers``, ``measured`` and ``advice`` put numbers into sentences and
tables (``words``), ``overview`` makes the page.
"""
