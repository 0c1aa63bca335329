"""What a training costs: MC2, its rivals, models of time, prices.

The input is the runs table, and settings. The output is predictions (time, energy, low, high).
``campaign_fit`` fits the models (``mc2_stages``, ``mc2_phases``). ``evaluation`` predicts runs that are held
out. ``forecast`` predicts new settings. ``joulecast.runs.judging`` computes the errors of predictions.
``strategy_energy`` prices simulated steps.
This room loads no torch and no MPI.
"""
