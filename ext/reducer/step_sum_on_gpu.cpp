#include "reducer/step_sum_on_gpu.h"

#include <exception>

#include "common/check.h"
#include "common/wait.h"
#include "reducer/work_handle.h"

namespace easyddl {
namespace {

// Only this rank's own GPU can delay these waits.
const Idle kNothing = [] {};

}  // namespace

std::string StepSumOnGpu::submit(Submittable& sum, size_t first, const std::vector<Segment>& arrays,
                                 double weight, void* stream) {
  try {
    is_used_ = true;
    const size_t bytes = total_bytes(arrays);
    if (bytes == 0) throw Error("The array to be summed is empty.");
    const auto queue = static_cast<CudaStream>(stream);
    const CurrentContext current(context_of(gpu_of(arrays.front().in)));
    const RelaxedCapture relaxed;
    refuse_capture(queue);
    if (!copied_) copied_.emplace();
    poll([&] { return copied_->is_reached(); }, true, kNothing);
    uint8_t* const here = pinned_.at_least(bytes);
    copy_to_host(arrays, here, queue);
    copied_->record(queue);
    poll([&] { return copied_->is_reached(); }, true, kNothing);
    const WorkHandle work;
    sum.submit(first, {{here, here, bytes}}, weight, work.done());
    while (!work.wait_for(kIdlePeriod)) {
    }
    copy_to_gpu(here, arrays, queue);
    copied_->record(queue);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

void StepSumOnGpu::close() {
  // The last copy from the pinned memory may be in progress.
  if (copied_) poll([&] { return copied_->is_reached(); }, true, kNothing);
  copied_.reset();
  pinned_.release();
}

}  // namespace easyddl
