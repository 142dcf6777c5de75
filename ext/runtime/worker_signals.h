// The signals by which a rank is asked to end, in the workers that it has forked.
#pragma once

#include <vector>

namespace easyddl {

// Says whether this process records a signal, instead of ending by it. Its workers learn of it.
void record_signal(int number, bool is_recorded);

// Makes this forked process ignore each of the signals that its parent records at the time. A
// launcher or a scheduler may signal all processes of a job, and a rank needs its workers until it
// has saved a backup. The signal has its former effect if the parent does not record it, if the
// parent itself sent it, as `Process.terminate` does, and when the parent has ended.
void leave_signals_to_parent(const std::vector<int>& numbers);

}  // namespace easyddl
