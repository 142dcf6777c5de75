// A sequence of steps that reduces a shard across hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "mpi/mpi.h"

namespace easyddl {

// A sequence of steps, each of which may start messages. The next step runs when the messages of
// the previous one have ended. A schedule proceeds only when `advance` is called, so that several
// schedules can be in progress at a time, and the network works while this rank does something
// else.
class Schedule {
 public:
  using Step = std::function<void()>;

  // Schedules with different tags never receive each other's messages. Messages of one tag are
  // matched in the order of the steps.
  explicit Schedule(int tag) : tag_(tag) {}
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  std::vector<uint8_t>
      data;          // this leader's data in the accumulator's type, and finally the result
  size_t count = 0;  // number of elements
  std::vector<uint8_t> wire;  // the elements as they are sent, if that is in another type
  double factor = 1;          // by which the data is multiplied while it is sent as float16

  // Adds a step. All steps must be added before the first one runs. `name` is for the timeline.
  void add(const char* name, Step step) { steps_.emplace_back(name, std::move(step)); }

  // Called by steps. Both sides skip empty messages. The memory must live as long as the schedule,
  // because a step that is given up leaves its messages in progress.
  void send(MPI_Comm comm, const void* from, size_t bytes, int to);
  void receive(MPI_Comm comm, void* into, size_t bytes, int from);

  // Buffers for received data and for a sum. The next step may reuse them.
  uint8_t* inbox(size_t bytes);
  uint8_t* scratch(size_t bytes);

  bool is_in_progress() const { return !steps_.empty(); }

  // Runs all steps whose predecessors' messages have ended. Returns true once the messages of the
  // last step have ended too.
  bool advance();

 private:
  bool have_messages_arrived();

  int tag_;
  std::vector<std::pair<const char*, Step>> steps_;
  size_t next_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<uint8_t> inbox_, scratch_;
};

}  // namespace easyddl
