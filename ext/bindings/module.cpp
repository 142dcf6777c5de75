// Python's doors to the engine: they take arguments, drop the GIL and call on.
#include <mpi.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "bindings/python_lock.h"
#include "collectives/communicator.h"
#include "collectives/fingerprint.h"
#include "common/check.h"
#include "common/wait.h"
#include "gpu/cuda_driver.h"
#include "profiling/timeline.h"
#include "profiling/trace.h"
#include "reducer/reducer.h"
#include "reducer/step_sum.h"
#include "reducer/work_handle.h"
#include "runtime/job_abort.h"
#include "runtime/process_exit.h"
#include "runtime/startup_monitor.h"
#include "runtime/world.h"

namespace py = pybind11;
using namespace easyddl;

namespace {

// Arrays come as their bytes; what these mean is told by a dtype's name.
using Bytes = py::array_t<uint8_t, py::array::c_style>;

// Never destroyed: threads of the engine outlive the module.
PythonVisits& visits() {
  static auto* const all = new PythonVisits;
  return *all;
}

// Lets Ctrl-C end a wait that was entered from Python's main thread.
void check_signals() {
  visits().make([] {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  });
}

// Keeps what Python hands in until the engine has done with it. The interpreter's main thread then
// lets go of it, so that the engine's threads need not wait for Python's lock.
class Keeper {
 public:
  int64_t keep(py::object object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    kept_[++last_] = std::move(object);
    return last_;
  }
  void done_with(int64_t number);
  void let_go() {
    std::vector<py::object> gone;  // freed without the lock: that may run Python
    const std::lock_guard<std::mutex> lock(mutex_);
    for (int64_t number : std::exchange(done_, {})) {
      gone.push_back(std::move(kept_[number]));
      kept_.erase(number);
    }
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, py::object> kept_;
  std::vector<int64_t> done_;
  int64_t last_ = 0;
};

Keeper& keeper() {
  static auto* const one = new Keeper;
  return *one;
}

void Keeper::done_with(int64_t number) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_.push_back(number);
  }
  if (Py_IsInitialized() == 0) return;
  // Soon; or, where the interpreter has too many such calls before it, when Python comes again.
  Py_AddPendingCall(
      [](void*) {
        keeper().let_go();
        return 0;
      },
      nullptr);
}

SegmentList to_segments(const std::vector<Bytes>& inputs, std::vector<Bytes>& outputs) {
  if (inputs.size() != outputs.size()) throw Error("As many outputs as inputs are needed.");
  std::vector<Segment> segments;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].nbytes() != outputs[i].nbytes()) {
      throw Error("Output " + std::to_string(i) + " has " + std::to_string(outputs[i].nbytes()) +
                  " bytes, its input " + std::to_string(inputs[i].nbytes()) + ".");
    }
    segments.push_back(
        {inputs[i].data(), outputs[i].mutable_data(), static_cast<size_t>(inputs[i].nbytes())});
  }
  return SegmentList(std::move(segments));
}

void require_bytes(const Bytes& array, size_t bytes, const char* name) {
  if (static_cast<size_t>(array.nbytes()) != bytes) {
    throw Error(std::string(name) + " has " + std::to_string(array.nbytes()) + " bytes where " +
                std::to_string(bytes) + " are needed.");
  }
}

size_t total(const std::vector<int64_t>& counts, int size, const char* name) {
  if (counts.size() != static_cast<size_t>(size)) {
    throw Error(std::string(name) + " must have one entry a rank.");
  }
  int64_t sum = 0;
  for (int64_t each : counts) {
    if (each < 0) throw Error(std::string(name) + " has a negative entry.");
    sum += each;
  }
  return static_cast<size_t>(sum);
}

// Has Python make the array for a result, in the midst of a collective, and keeps it until the end.
class Allocation {
 public:
  Allocation(py::function allocate, size_t unit_bytes)
      : allocate_(std::move(allocate)), unit_bytes_(unit_bytes) {}

  Communicator::Allocate function() const {
    return [this](const std::vector<int64_t>& counts) -> void* {
      void* memory = nullptr;
      visits().make([&] { memory = make(counts); });
      if (memory == nullptr) throw Error("The interpreter is about to end.");
      return memory;
    };
  }

 private:
  void* make(const std::vector<int64_t>& counts) const {
    try {
      result_ = allocate_(counts).cast<Bytes>();
      const size_t units = total(counts, static_cast<int>(counts.size()), "counts");
      require_bytes(*result_, units * unit_bytes_, "The array for the result");
      return result_->mutable_data();
    } catch (const py::error_already_set& error) {
      // All ranks can fail alike for an error, but not for an interrupt of one of them.
      if (!error.matches(PyExc_Exception)) throw;
      throw Error(first_line(error.what()));
    }
  }
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  py::function allocate_;
  size_t unit_bytes_;
  mutable std::optional<Bytes> result_;
};

std::string mpi_library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  check_mpi(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  return std::string(text, static_cast<size_t>(length));
}

std::string built_with() {
#if defined(OMPI_MAJOR_VERSION)
  return "Open MPI " + std::to_string(OMPI_MAJOR_VERSION) + '.' +
         std::to_string(OMPI_MINOR_VERSION) + '.' + std::to_string(OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
  return std::string("MPICH ") + MPICH_VERSION;
#else
  return "MPI " + std::to_string(MPI_VERSION) + '.' + std::to_string(MPI_SUBVERSION);
#endif
}

// Worlds and channels are never destroyed: freeing a communicator takes all ranks, which end
// their interpreters at different times, and the exit of the process still needs the world.
template <class T>
using Immortal = std::unique_ptr<T, py::nodelete>;

void define_start_watch(py::module_& m) {
  py::class_<StartupMonitor>(m, "StartWatch", "Deadlines and Ctrl-C while easyddl starts.")
      .def(py::init([](int rank, const std::string& host, double stall_warn, double stall_abort) {
             return std::make_unique<StartupMonitor>(rank, host,
                                                     Deadlines{stall_warn, stall_abort});
           }),
           py::arg("rank"), py::arg("host"), py::arg("stall_warn"), py::arg("stall_abort"),
           "Begins. `rank` and `host` are those that the launcher and the system tell.")
      .def("enter", &StartupMonitor::enter, py::arg("step"), py::arg("has_mpi"),
           "This rank enters a step of the start; `has_mpi`: MPI has started.")
      .def("stop", &StartupMonitor::stop, py::call_guard<WithoutPythonLock>(),
           "The start has ended, well or not.");
}

void define_world(py::module_& m) {
  py::class_<World, Immortal<World>>(m, "World", "All ranks of the job, and where they are.")
      .def(py::init([](const std::string& host, double stall_warn, double stall_abort,
                       const std::string& racks, const std::string& route, const std::string& gpu,
                       const std::string& cuda_aware) {
             const WithoutPythonLock nogil;
             return Immortal<World>(new World(host, {stall_warn, stall_abort},
                                              NetworkOptions{racks, route, gpu, cuda_aware}));
           }),
           py::arg("host"), py::arg("stall_warn"), py::arg("stall_abort"), py::arg("racks") = "",
           py::arg("route") = "", py::arg("gpu") = "", py::arg("cuda_aware") = "",
           "Collective over MPI_COMM_WORLD. `host` names this rank's host; deadlines in seconds. "
           "`racks`, `route`, `gpu` and `cuda_aware` are those of rank 0: the rack of each host, "
           "with "
           "commas between; the way across hosts (whole, direct, halving or ring); that of arrays "
           "on GPUs (nccl, hierarchical or host); and whether MPI takes these (0 or 1).")
      .def(
          "set_stack",
          [](World& w, const py::function& stack) {
            // Never destroyed: there may be no interpreter left to do so.
            auto* const function = new py::function(stack);
            w.stall_inspector().set_stack([function]() -> std::string {
              std::string text;
              visits().make([&] {
                try {
                  text = py::cast<std::string>((*function)());
                } catch (const std::exception& error) {
                  text = std::string("unknown: ") + error.what();
                }
              });
              return text;
            });
          },
          py::arg("stack"), "What says where this rank's script stands, if another rank asks.")
      .def(
          "set_activity",
          [](World& w, const std::string& activity) { w.stall_inspector().set_activity(activity); },
          py::arg("activity"), "What this rank does that may take long; empty for nothing.")
      .def("finish", &World::finish, py::call_guard<WithoutPythonLock>(),
           "Waits for what this rank has queued on its GPU.")
      .def_property_readonly("rank", [](const World& w) { return w.topology().rank; })
      .def_property_readonly("size", [](const World& w) { return w.topology().size; })
      .def_property_readonly("local_rank",
                             [](const World& w) { return w.topology().place.local_rank; })
      .def_property_readonly("local_size",
                             [](const World& w) { return w.topology().place.local_size; })
      .def_property_readonly("node_rank",
                             [](const World& w) { return w.topology().place.node_rank; })
      .def_property_readonly("num_nodes",
                             [](const World& w) { return w.topology().place.num_nodes; })
      .def_property_readonly("num_racks", [](const World& w) { return w.topology().num_racks; })
      .def_property_readonly("hosts", [](const World& w) { return w.topology().host_of; });
}

void define_channel(py::module_& m) {
  py::class_<Communicator, Immortal<Communicator>>(
      m, "Channel", "One line of collectives, called in the same order by all ranks.")
      .def(py::init([](World& world, bool watch_signals) {
             const WithoutPythonLock nogil;
             Immortal<Communicator> communicator(Communicator::open(world).release());
             if (watch_signals) communicator->set_idle(check_signals);
             return communicator;
           }),
           py::arg("world"), py::arg("watch_signals"), py::keep_alive<1, 2>(),
           "Collective. With `watch_signals` Ctrl-C ends a wait of Python's main thread.")
      .def(
          "allreduce",
          [](Communicator& communicator, const std::vector<Bytes>& inputs,
             std::vector<Bytes> outputs, const std::string& dtype, const std::string& op,
             const Fingerprint& fingerprint) {
            const SegmentList segments = to_segments(inputs, outputs);
            const DType type = parse_dtype(dtype);
            const Op function = parse_op(op);
            const WithoutPythonLock nogil;
            communicator.allreduce(segments, type, function, fingerprint);
          },
          py::arg("inputs"), py::arg("outputs"), py::arg("dtype"), py::arg("op"),
          py::arg("signature"), "Reduces a list of arrays over all ranks, element by element.")
      .def(
          "broadcast",
          [](Communicator& communicator, const std::vector<Bytes>& inputs,
             std::vector<Bytes> outputs, int root, const Fingerprint& fingerprint) {
            const SegmentList segments = to_segments(inputs, outputs);
            const WithoutPythonLock nogil;
            communicator.broadcast(segments, root, fingerprint);
          },
          py::arg("inputs"), py::arg("outputs"), py::arg("root"), py::arg("signature"),
          "Writes the root's inputs to the outputs of all other ranks.")
      .def(
          "barrier",
          [](Communicator& communicator, const Fingerprint& fingerprint) {
            const WithoutPythonLock nogil;
            communicator.barrier(fingerprint);
          },
          py::arg("signature"), "Returns once all ranks have called it.")
      .def(
          "gather_values",
          [](Communicator& communicator, int64_t value, const Fingerprint& fingerprint) {
            const WithoutPythonLock nogil;
            return communicator.gather_values(value, fingerprint);
          },
          py::arg("value"), py::arg("signature"), "The value of each rank, in their order.")
      .def(
          "all_gather",
          [](Communicator& communicator, const Bytes& input, int64_t count, size_t unit_bytes,
             const Fingerprint& fingerprint, const py::function& allocate) {
            require_bytes(input, static_cast<size_t>(count) * unit_bytes, "input");
            const Allocation result(allocate, unit_bytes);
            const WithoutPythonLock nogil;
            communicator.all_gather(input.data(), count, unit_bytes, fingerprint,
                                    result.function());
          },
          py::arg("input"), py::arg("count"), py::arg("unit_bytes"), py::arg("signature"),
          py::arg("allocate"),
          "Writes all ranks' units, `count` of this one, in their order. `allocate` is passed the "
          "counts of all ranks, and returns the array for the result.")
      .def(
          "all_to_all",
          [](Communicator& communicator, const Bytes& input, const std::vector<int64_t>& sends,
             size_t unit_bytes, const Fingerprint& fingerprint, const py::function& allocate) {
            const size_t bytes = total(sends, communicator.size(), "sends") * unit_bytes;
            require_bytes(input, bytes, "input");
            const Allocation result(allocate, unit_bytes);
            const WithoutPythonLock nogil;
            communicator.all_to_all(input.data(), sends, unit_bytes, fingerprint,
                                    result.function());
          },
          py::arg("input"), py::arg("sends"), py::arg("unit_bytes"), py::arg("signature"),
          py::arg("allocate"),
          "Sends sends[r] units to each rank r. `allocate` is passed how many come from each, and "
          "returns the array for them.")
      .def(
          "broadcast_unknown",
          [](Communicator& communicator, const Bytes& input, int root,
             const Fingerprint& fingerprint, const py::function& allocate) {
            const Allocation result(allocate, 1);
            const WithoutPythonLock nogil;
            communicator.broadcast_unknown(input.data(), input.nbytes(), root, fingerprint,
                                           result.function());
          },
          py::arg("input"), py::arg("root"), py::arg("signature"), py::arg("allocate"),
          "Writes the root's input, whose length the others do not know, to the arrays of all. "
          "`allocate` is passed a list of that length, and returns this rank's.")
      .def("give_up", &Communicator::give_up, py::arg("why"), py::call_guard<WithoutPythonLock>(),
           "Breaks the channel on all ranks: this one gives up a collective that others may be in.")
      .def(
          "reduce_scatter",
          [](Communicator& communicator, const Bytes& input, Bytes output, size_t count, int size,
             const std::string& dtype, const std::string& op, const Fingerprint& fingerprint) {
            const DType type = parse_dtype(dtype);
            const Op function = parse_op(op);
            const size_t part = count * size_of(type);
            require_bytes(input, part * static_cast<size_t>(size), "input");
            require_bytes(output, part, "output");
            void* out = output.mutable_data();
            const WithoutPythonLock nogil;
            communicator.reduce_scatter(input.data(), out, count, type, function, fingerprint);
          },
          py::arg("input"), py::arg("output"), py::arg("count"), py::arg("size"), py::arg("dtype"),
          py::arg("op"), py::arg("signature"),
          "Reduces part r of all ranks' inputs into the output of rank r.");
}

// For frameworks whose tensors are known to Python alone: where each is read, where its result
// goes, and its bytes.
using Addresses = std::vector<std::tuple<uintptr_t, uintptr_t, size_t>>;

std::vector<Segment> to_segments(const Addresses& arrays) {
  std::vector<Segment> segments;
  for (const auto& [in, out, bytes] : arrays) {
    segments.push_back(
        {reinterpret_cast<const uint8_t*>(in), reinterpret_cast<uint8_t*>(out), bytes});
  }
  return segments;
}

void submit_on_gpu(int64_t reducer, size_t first, const Addresses& arrays, double weight,
                   uintptr_t gpu_weight, uintptr_t stream, py::object keep) {
  std::vector<Segment> segments = to_segments(arrays);
  keeper().let_go();
  const int64_t kept = keeper().keep(std::move(keep));
  const WithoutPythonLock nogil;
  const std::string refused = reducer_entry_points().submit_on_gpu(
      reducer, first, std::move(segments), reinterpret_cast<const float*>(gpu_weight), weight,
      reinterpret_cast<void*>(stream), [kept](const std::string&) { keeper().done_with(kept); });
  if (!refused.empty()) throw Error(refused);
}

// What gradients' exchanges and sums have in common.
template <class T>
py::class_<T, Immortal<T>> define_submittable(py::module_& m, const char* name, const char* doc) {
  // Never destroyed: threads may be under way in it when the interpreter ends.
  return py::class_<T, Immortal<T>>(m, name, doc)
      .def_property_readonly("number", &T::number)
      .def("join", &T::join, "From now on this rank has no batches: it adds nothing.")
      .def(
          "wait_for_all",
          [](T& target) {
            for (;;) {
              {
                const WithoutPythonLock nogil;
                if (target.wait_for_all(kIdlePeriod)) return;
              }
              check_signals();
            }
          },
          "Returns once all ranks have joined.")
      .def_property_readonly(
          "waited",
          [](T& target) {
            std::optional<double> seconds;
            if (const auto waited = target.waited()) {
              seconds = std::chrono::duration<double>(*waited).count();
            }
            return seconds;
          },
          "Seconds for which steps have stood still for it.")
      .def("ask_to_stop", &T::ask_to_stop, py::arg("stop"),
           "Whether this rank asks all to stop, from its next step on.")
      .def_property_readonly(
          "seen",
          [](T& target) {
            const JoinSummary join_summary = target.join_summary();
            return py::make_tuple(join_summary.missed, join_summary.uneven, join_summary.stop);
          },
          "Since `forget`: how many steps others took while this rank had no batch; the first "
          "step, from 1, in which any rank had none in a step of others; the first in which any "
          "has asked all to stop. 0 for none.")
      .def("forget", &T::forget, "Begins anew with what the steps tell.")
      .def("close", &T::close, py::call_guard<WithoutPythonLock>(),
           "Ends it. Returns once nothing of it is under way.");
}

// Of each the name, the dtype, the rows and the bytes of a row.
using Tables = std::vector<std::tuple<std::string, std::string, size_t, size_t>>;

std::vector<Table> to_tables(const Tables& tables) {
  std::vector<Table> list;
  for (const auto& [name, dtype, rows, row_bytes] : tables) {
    list.push_back({name, parse_dtype(dtype), rows, row_bytes});
  }
  return list;
}

void define_exchange(py::module_& m) {
  define_submittable<Reducer>(m, "Exchange", "A list of gradients, averaged step after step.")
      .def(py::init([](World& world, const std::string& what,
                       const std::vector<std::pair<std::string, std::vector<size_t>>>& buckets,
                       const std::string& op, const Tables& tables) {
             std::vector<Bucket> list;
             for (const auto& [dtype, bytes] : buckets) list.push_back({parse_dtype(dtype), bytes});
             const Op function = parse_op(op);
             std::vector<Table> of_rows = to_tables(tables);
             const WithoutPythonLock nogil;
             return Immortal<Reducer>(
                 new Reducer(world, what, std::move(list), function, std::move(of_rows)));
           }),
           py::arg("world"), py::arg("what"), py::arg("buckets"), py::arg("op") = "mean",
           py::arg("tables") = Tables{}, py::keep_alive<1, 2>(),
           "Collective. `buckets` holds the dtype of each, and the bytes of each of its arrays. "
           "`op` is the mean, weighted by the ranks' batches, or the sum. `tables` holds, of each "
           "sparse gradient, the variable's name, the dtype, the rows and the bytes of a row.")
      .def_property_readonly("gathered", &Reducer::gathered,
                             "How many steps there were, and how many rows of each table all "
                             "ranks have had in them.");
  define_submittable<StepSum>(m, "StepSum", "A sum of float32 arrays at one place of a step.")
      .def(py::init([](World& world, const std::string& what, size_t count) {
             const WithoutPythonLock nogil;
             return Immortal<StepSum>(new StepSum(world, what, count));
           }),
           py::arg("world"), py::arg("what"), py::arg("count"), py::keep_alive<1, 2>(),
           "Collective. `count` is the number of elements.");
  m.def("look_for_nccl_in", &look_for_nccl_in, py::arg("folders"),
        "Where Python's packages keep NCCL. Nothing is opened before arrays lie on a GPU.");
  m.def("only_queues_on_gpu", &only_queues_on_gpu, py::arg("exchange"),
        "Whether handing in arrays on a GPU only queues them, and waits for nothing that they do.");
  m.def("gpu_versions", &gpu_versions,
        "The CUDA driver, the GPUs and NCCL: pairs of a name and a text. Opens them.");
  m.def("give_up", &give_up, py::arg("exchange"), py::arg("why"),
        py::call_guard<WithoutPythonLock>(),
        "Breaks an exchange or a sum on all ranks: this one leaves a step that others may be in.");
  m.def("exchanged_steps", &reduced_steps, "How many steps of gradients were exchanged.");
  m.def(
      "exchange_door", [] { return reinterpret_cast<uintptr_t>(&reducer_entry_points()); },
      "The address of what leads frameworks' own libraries to the exchanges.");
}

void define_submit(py::module_& m) {
  py::class_<WorkHandle>(m, "Ticket", "Arrays that have been handed in, to be waited for.")
      .def(
          "wait",
          [](const WorkHandle& work) {
            for (;;) {
              {
                const WithoutPythonLock nogil;
                if (work.wait_for(kIdlePeriod)) return;
              }
              check_signals();
            }
          },
          "Returns once the arrays hold the result; an error says why they do not.");
  m.def(
      "submit",
      [](int64_t reducer, size_t first, const Addresses& arrays, double weight, py::object keep) {
        std::vector<Segment> segments = to_segments(arrays);
        keeper().let_go();
        const int64_t kept = keeper().keep(std::move(keep));
        WorkHandle work;
        const WithoutPythonLock nogil;
        reducer_entry_points().submit(reducer, first, std::move(segments), weight,
                                      [kept, done = work.done()](const std::string& error) {
                                        done(error);
                                        keeper().done_with(kept);
                                      });
        return work;
      },
      py::arg("exchange"), py::arg("first"), py::arg("arrays"), py::arg("weight"),
      py::arg("keep") = py::none(),
      "Hands in arrays of whole buckets, from bucket `first` on: where each is read, where its "
      "result goes, and its bytes. `keep` lives until the ticket is done, as this memory must: a "
      "wait for the ticket may be interrupted.");
  m.def(
      "submit_on_gpu", &submit_on_gpu, py::arg("exchange"), py::arg("first"), py::arg("arrays"),
      py::arg("weight"), py::arg("gpu_weight"), py::arg("stream"), py::arg("keep") = py::none(),
      "The same for arrays on a GPU. `gpu_weight` is the address of a float32, or 0 where `weight` "
      "tells it. `stream` waits for the results. `keep` lives until they are there. It waits until "
      "all "
      "ranks have begun the step, and for what the hosts do in it.");
}

void define_trace(py::module_& m) {
  m.def(
      "start_timeline",
      [](World& world, int file) {
        start_timeline(world.comm(), world.topology().cores_are_shared, file);
      },
      py::arg("world"), py::arg("file"), py::call_guard<WithoutPythonLock>(),
      "Collective. Writes what this process does to a file, by its descriptor.");
  m.def(
      "add_step",
      [](int64_t begin, int64_t end, int64_t step) {
        if (Trace* trace = Trace::on()) trace->add("step", begin, end, {{"step", step}});
      },
      py::arg("begin"), py::arg("end"), py::arg("step"),
      "Writes that a training step went from one time.monotonic_ns() to another.");
  m.def("time_spans", &time_spans, py::arg("count"),
        "How many seconds so many spans take, for a benchmark.");
}

void define_bench(py::module_& m) {
  using Floats = py::array_t<float, py::array::c_style>;
  py::class_<Bench, Immortal<Bench>>(m, "Bench", "Times allreduce beside other ways to do it.")
      .def(py::init([](World& world, Communicator& communicator) {
             const WithoutPythonLock nogil;
             return Immortal<Bench>(new Bench(world, communicator));
           }),
           py::arg("world"), py::arg("channel"), py::keep_alive<1, 2>(), py::keep_alive<1, 3>(),
           "Collective. `channel` is the one that easyddl's own way takes.")
      .def(
          "time",
          [](Bench& bench, const std::string& algorithm, const Floats& input, Floats output,
             Floats scratch, int calls) {
            const size_t count = static_cast<size_t>(input.size());
            if (output.size() != input.size() || scratch.size() != input.size()) {
              throw Error("The input, the output and the scratch memory must be equally long.");
            }
            const BenchData data{input.data(), output.mutable_data(), scratch.mutable_data(),
                                 count};
            const WithoutPythonLock nogil;
            return bench.time(algorithm, data, calls);
          },
          py::arg("way"), py::arg("input").noconvert(), py::arg("output").noconvert(),
          py::arg("scratch").noconvert(), py::arg("calls"),
          "Collective. Goes one way `calls` times; the seconds that a call took on this rank.");
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The engine of easyddl: hierarchical collectives over shared memory and MPI.";
  py::register_exception<Error>(m, "Error", PyExc_RuntimeError);
  m.def("mpi_library_version", &mpi_library_version, "What the MPI that is loaded calls itself.");
  m.def("built_with", &built_with, "The MPI that this module was compiled for.");
  py::class_<Fingerprint>(m, "Signature", "What a rank asks of a collective, in words.")
      .def(py::init<std::string>(), py::arg("text"))
      .def_readonly("text", &Fingerprint::text);
  define_start_watch(m);
  define_world(m);
  define_channel(m);
  define_exchange(m);
  define_submit(m);
  define_trace(m);
  define_bench(m);
  m.def(
      "end_job", [](int status) { end_job(status); }, py::arg("status"),
      "Ends all ranks with this exit status. Does not return.");
  m.def("watch_exit", &watch_exit, py::arg("world"), py::call_guard<WithoutPythonLock>(),
        "From now on this process parts from the others when it exits.");
  m.def("warn_at_end", &warn_at_end, py::arg("text"),
        "Prints the text on the root when the job ends, if all ranks have asked for it.");
  m.def(
      "stop_signals", [] { visits().close(); }, py::call_guard<WithoutPythonLock>(),
      "Called when the interpreter is about to end: waits no longer look for signals.");
}
