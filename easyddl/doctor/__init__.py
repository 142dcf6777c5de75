"""`easyddl doctor`: examines hosts and the links between them, and reports problems.

The coordinator (`examination.py`) starts one agent (`agent.py`) on each host. An agent reports
facts about its host and measures its memory and its links. `judge_*.py` derive findings from these
reports, and `report.py` prints them. Agents need neither MPI nor Keras, so they can examine a host
on which these are broken.
"""
