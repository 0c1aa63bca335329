"""Pages for people. The overview of a campaign's results is one file, which needs no other file.

``report.results_folder`` reads what the rules wrote. ``report.campaign`` gives the answers, and
``report.figures`` draws. ``settings``, ``cost_and_time`` and ``clusters_and_papers`` put the numbers into
tables and words. ``overview`` fills ``templates/overview.html.j2``. ``templates/overview.js`` computes
the box *Your numbers*.
"""
