"""`easyddl doctor`: examines hosts and the links between them, and says what is wrong.

The coordinator (`examination.py`) starts one agent on each host (`agent.py`). An agent reports
facts about its host and measures its memory and its links. The judgements (`judge_*.py`) turn what
the agents report into findings, and `report.py` shows them. Agents need neither MPI nor Keras, so
that a host where these are broken can be examined.
"""
