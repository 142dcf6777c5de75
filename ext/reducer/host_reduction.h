// Reduces gradients in host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "arrays/segment_list.h"
#include "collectives/communicator.h"
#include "collectives/row_gather.h"
#include "reducer/reducer_plan.h"
#include "reducer/reducer_step.h"
#include "reducer/request.h"

namespace easyddl {

// Reduces the buckets of a reducer's steps, one after the other. Sparse gradients are not summed.
// Instead the rows of all ranks are gathered, multiplied by factors that make their sum the
// weighted mean. So an optimizer that applies rows one by one works as in a single process. Rows
// are gathered after the last bucket, as one more bucket.
class HostReduction {
 public:
  HostReduction(const ReducerPlan& plan, Communicator& communicator, ReducerStep& step,
                std::vector<Table> tables)
      : plan_(plan),
        communicator_(communicator),
        step_(step),
        rows_(std::move(tables), plan.wire) {}

  // Reduces the arrays of whole buckets, beginning with the next bucket, or gathers rows.
  void run(const Request& request);

  // Takes part with zeros and no rows in a step of the other ranks, or learns that all ranks have
  // joined.
  void run_joined_step();

  // Frees the memory for rows. No step may be in progress.
  void close() { rows_.release(); }

  // Returns how many rows of each table all ranks have had in all steps.
  std::vector<uint64_t> gathered_rows() const { return rows_.gathered(); }

 private:
  void reduce(std::vector<Segment> arrays, int64_t submitted_at);
  void allreduce_bucket(std::vector<Segment> arrays, int64_t submitted_at);
  void gather_rows(const Request* request);

  const ReducerPlan& plan_;
  Communicator& communicator_;
  ReducerStep& step_;
  RowGather rows_;
};

}  // namespace easyddl
