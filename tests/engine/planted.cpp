// Programs with one error each, which a sanitizer must report:  mpirun -np 2 PROGRAM ERROR
//
// They prove that the sanitizers work in this build, and that the suppressions for MPI do not hide
// errors of easyddl.
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "arrays/segment_list.h"
#include "loaded_mpi.h"
#include "mpi/mpi.h"

namespace {

volatile int g_sink = 0;

void read_too_far() {
  std::vector<uint8_t> in(7), out(8);
  // An error in the engine's code, which is reported only if that was built with the sanitizer.
  easyddl::SegmentList({{in.data(), nullptr, 8}}).copy_in(0, 8, out.data());
  g_sink = out[7];
}

void overflow() {
  volatile int large = std::numeric_limits<int>::max();
  g_sink = large + 1;
}

void leak() {
  g_sink = static_cast<int>(std::string(1000, 'x').append(*new std::string("y")).size());
}

void race() {
  std::vector<uint8_t> in(8), out(8);
  const easyddl::SegmentList segments({{in.data(), out.data(), 8}});
  const auto copy = [&] { segments.copy_out(0, 8, in.data()); };
  std::thread other(copy);
  copy();
  other.join();
}

// Two threads, one after the other, that lock two mutexes in different orders.
void lock_order() {
  std::mutex one, two;
  const auto lock = [](std::mutex& first, std::mutex& second) {
    std::thread([&] {
      const std::lock_guard<std::mutex> outer(first);
      const std::lock_guard<std::mutex> inner(second);
    }).join();
  };
  lock(one, two);
  lock(two, one);
}

}  // namespace

int main(int argc, char** argv) {
  load_mpi_of_tests();
  auto level = easyddl::mpi::ThreadLevel::single;
  EASYDDL_MPI(MPI_Init_thread, easyddl::MPI_THREAD_MULTIPLE, &level);
  const std::string error = argc > 1 ? argv[1] : "";
  if (error == "read_too_far") read_too_far();
  if (error == "overflow") overflow();
  if (error == "leak") leak();
  if (error == "race") race();
  if (error == "lock_order") lock_order();
  easyddl::mpi_functions().MPI_Finalize();
  std::puts("came to the end");
  return 0;
}
