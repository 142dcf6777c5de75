// The steps by which a shard is reduced across hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "mpi/mpi.h"

namespace easyddl {

// A sequence of steps, each of which may start messages. The next step runs when the messages of
// the one before have come. A schedule proceeds only when `advance` is called, so that several
// schedules can be in progress at a time and the network works while this rank does something else.
class Schedule {
 public:
  using Step = std::function<void()>;

  // Messages of different tags never meet. Those of one tag meet in the order of the steps.
  explicit Schedule(int tag) : tag_(tag) {}
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  std::vector<uint8_t> data;  // this leader's, in accumulators; in the end the result
  size_t count = 0;           // of elements

  // Steps are added before the first of them is taken. The timeline shows them by their names.
  void add(const char* name, Step step) { steps_.emplace_back(name, std::move(step)); }

  // For steps. Messages of no length are not sent: both sides know of that. The memory must live as
  // long as the schedule: a step that is given up leaves its messages behind.
  void send(MPI_Comm comm, const void* from, size_t bytes, int to);
  void receive(MPI_Comm comm, void* into, size_t bytes, int from);

  // Memory for what a step receives, which the next one may ask for again; and for a sum.
  uint8_t* inbox(size_t bytes);
  uint8_t* scratch(size_t bytes);

  bool is_under_way() const { return !steps_.empty(); }

  // Runs all steps whose messages have come. True once those of the last step have come too.
  bool advance();

 private:
  bool have_messages_come();

  int tag_;
  std::vector<std::pair<const char*, Step>> steps_;
  size_t next_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<uint8_t> inbox_, scratch_;
};

}  // namespace easyddl
