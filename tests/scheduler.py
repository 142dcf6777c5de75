"""The order in which pytest-xdist's workers get the groups of `groups.py`."""

import groups
from xdist.scheduler import LoadScopeScheduling


class GroupScheduling(LoadScopeScheduling):
    """Some workers run the groups that compute. When these are done, all workers run the others.

    A worker keeps its last test until it is given another one or is shut down, which is why two
    tests of a worker count as done. `_split_scope`, `_assign_work_unit`, `_reschedule` and
    `_pending_of` are names of pytest-xdist 3.8, which its `LoadFileScheduling` and
    `LoadGroupScheduling` override or call as well.
    """

    def _split_scope(self, nodeid):
        return groups.group_of(nodeid)

    def _assign_work_unit(self, node):
        computing = [scope for scope in self.workqueue if not self._waits(self.workqueue[scope])]
        if computing:
            if node not in self.nodes[: groups.COMPUTING]:
                return
            self.workqueue.move_to_end(computing[0], last=False)
        elif node not in self.nodes[: groups.COMPUTING] and self._computes():
            return
        super()._assign_work_unit(node)

    def mark_test_complete(self, node, item_index, duration=0):
        super().mark_test_complete(node, item_index, duration)
        # Workers that had nothing to do until now.
        if not self._computes():
            for other in self.nodes:
                while self.workqueue and self._pending_of(self.assigned_work[other]) < 2:
                    self._assign_work_unit(other)

    def _computes(self):
        """Whether tests that compute are still to be run, but for a worker's last two."""
        units = [unit for node in self.nodes for unit in self.assigned_work[node].values()]
        left = sum(list(unit.values()).count(False) for unit in units if not self._waits(unit))
        is_queued = any(not self._waits(unit) for unit in self.workqueue.values())
        return is_queued or left > 2 * groups.COMPUTING

    @staticmethod
    def _waits(unit):
        return groups.mostly_waits(next(iter(unit)))
