// A stand-in for NCCL (libnccl.so.2), for tests on machines without a GPU. It works on the
// stand-in for the CUDA driver.
//
// Ranks of one machine meet in shared memory. Collectives run in the order of their streams, and
// sum in the order of the ranks, 16-bit floats in 32 bits. What the real one rejects is rejected;
// what makes it hang, or go wrong in silence, ends in an asynchronous error that tells of it:
// ranks that differ in what they call, a communicator that is used after its end, a group that
// is not ended, a call before the last one has been taken.
//
// It takes every third call late, as the real one may.
//
// STAND_IN_NCCL_VERSION is the version it claims to be. STAND_IN_COUNT has it write a line for each
// new id and each communicator. STAND_IN_FAULT=kind,rank,call injects a
// fault at a rank's so many-th collective, counted from 1: `error` is returned by it; `async`
// comes up later; `hang` never ends. With the kinds init_error and init_hang no call counts.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

// Of the stand-in for CUDA.
extern "C" {
void* standInBytes(uintptr_t address, size_t bytes);
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* data);
int cuCtxGetDevice(int* device);
int cuDeviceGetPCIBusId(char* text, int length, int device);
}

namespace {

enum {
  kSuccess = 0,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class Kind { allreduce, reduce_scatter, all_gather, reduce, broadcast };
constexpr const char* kNames[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather",
                                  "ncclReduce", "ncclBroadcast"};
constexpr int kSum = 0;         // what all-gathers and broadcasts pass on
constexpr int kBuiltInOps = 5;  // those that follow are made by ncclRedOpCreatePreMulSum
constexpr int kScaled = 100;    // as ranks compare it: their factors may differ

constexpr size_t kMostRanks = 16;
constexpr size_t kArea = 256 << 10;  // bytes of a rank's, in accumulators

// What ranks compare.
struct Call {
  Kind kind;
  int dtype, op, root;
  uint64_t count, number;
};

struct Segment {
  std::atomic<int> attached;
  std::atomic<uint64_t> arrived;
  int sizes[kMostRanks];
  int taken[kMostRanks];
  char buses[kMostRanks][16];
  char host_ids[kMostRanks][32];
  Call calls[kMostRanks];
  alignas(64) uint8_t areas[kMostRanks][kArea];
};

struct Fault {
  std::string kind;
  int rank = -1;
  uint64_t call = 0;
};

Fault planted() {
  Fault fault;
  const char* text = std::getenv("STAND_IN_FAULT");
  if (text == nullptr) return fault;
  std::istringstream words(text);
  std::string rank, call;
  std::getline(words, fault.kind, ',');
  std::getline(words, rank, ',');
  std::getline(words, call, ',');
  fault.rank = std::atoi(rank.c_str());
  fault.call = static_cast<uint64_t>(std::atoi(call.c_str()));
  return fault;
}

// A communicator. Its threads may outlive it: it is never freed.
struct Comm {
  Segment* segment = nullptr;
  int size = 0, rank = 0;
  std::atomic<bool> is_aborted{false};
  std::atomic<int> error{kSuccess};
  std::mutex mutex, asking;
  std::string last_error;
  uint64_t calls = 0, launches = 0, barriers = 0;
  std::map<int, std::pair<int, double>> scaled;  // operators: dtype and factor
  int next_op = kBuiltInOps;
  std::vector<std::function<int()>> late;  // what is to be launched, once it has been asked for
  int polls = 0;

  int fail(int code, const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex);
    last_error = text;
    return code;
  }
  void fail_later(int code, const std::string& text) {
    fail(code, text);
    error = code;
  }
  void hang() const {
    while (!is_aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

struct Registry {
  std::mutex mutex;
  std::set<Comm*> live;
};

Registry& registry() {
  static Registry* const all = new Registry;
  return *all;
}

bool is_live(Comm* comm) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  return registry().live.count(comm) != 0;
}

thread_local std::string t_last_error;
thread_local int t_depth = 0;
thread_local int t_group_error = kSuccess;
thread_local std::vector<std::pair<Comm*, std::function<int()>>> t_group;

// --- Numbers.

float from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value != value) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float from_fp16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.f : 1.f;
  if (exponent == 31) return mantissa != 0 ? __builtin_nanf("") : sign * __builtin_inff();
  if (exponent == 0) return sign * __builtin_ldexpf(static_cast<float>(mantissa), -24);
  return sign * __builtin_ldexpf(static_cast<float>(mantissa + 1024), exponent - 25);
}

uint16_t to_fp16(float value) {
  const uint16_t sign = __builtin_signbit(value) ? 0x8000 : 0;
  const float size = __builtin_fabsf(value);
  if (value != value) return 0x7e00;
  if (size >= 65520.f) return sign | 0x7c00;
  int exponent = 0;
  __builtin_frexpf(size, &exponent);
  // The last place of a number of this size, to which it is rounded, half to even.
  const int place = std::max(exponent - 11, -24);
  const float places = __builtin_rintf(__builtin_ldexpf(size, -place));
  const float rounded = __builtin_ldexpf(places, place);
  if (rounded < 6.103515625e-05f) {
    return sign | static_cast<uint16_t>(__builtin_ldexpf(rounded, 24));
  }
  __builtin_frexpf(rounded, &exponent);
  const int mantissa = static_cast<int>(__builtin_ldexpf(rounded, 11 - exponent)) - 1024;
  return sign | static_cast<uint16_t>(((exponent + 14) << 10) | mantissa);
}

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

template <class T>
struct Wide {
  using type = T;
};
template <>
struct Wide<Half> {
  using type = float;
};
template <>
struct Wide<Brain> {
  using type = float;
};

template <class T>
typename Wide<T>::type widen(T value) {
  return value;
}
template <>
float widen(Half value) {
  return from_fp16(value.bits);
}
template <>
float widen(Brain value) {
  return from_bf16(value.bits);
}
template <class T>
T narrow(typename Wide<T>::type value) {
  return value;
}
template <>
Half narrow<Half>(float value) {
  return {to_fp16(value)};
}
template <>
Brain narrow<Brain>(float value) {
  return {to_bf16(value)};
}

// Of floating-point numbers, for which alone easyddl calls NCCL.
size_t bytes_of(int dtype) {
  constexpr size_t kBytes[] = {2, 4, 8, 2};
  return dtype >= 6 && dtype <= 9 ? kBytes[dtype - 6] : 0;
}

template <class T>
struct Tag {
  using type = T;
};

template <class F>
void with_type(int dtype, F body) {
  switch (dtype) {
    case 6:
      return body(Tag<Half>{});
    case 7:
      return body(Tag<float>{});
    case 8:
      return body(Tag<double>{});
    case 9:
      return body(Tag<Brain>{});
  }
}

// --- Collectives, on the threads of streams.

// False if the communicator has been ended.
bool barrier(Comm& comm) {
  const uint64_t target = ++comm.barriers * static_cast<uint64_t>(comm.size);
  comm.segment->arrived.fetch_add(1);
  for (int i = 0; comm.segment->arrived.load() < target; ++i) {
    if (comm.is_aborted) return false;
    if (i < 50) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return true;
}

std::string in_words(const Call& call) {
  std::ostringstream text;
  text << kNames[static_cast<int>(call.kind)] << " no. " << call.number << " of " << call.count
       << " elements of type " << call.dtype << ", op " << call.op << ", root " << call.root;
  return text.str();
}

bool compare(Comm& comm, const Call& mine) {
  comm.segment->calls[comm.rank] = mine;
  if (!barrier(comm)) return false;
  for (int rank = 1; rank < comm.size; ++rank) {
    const Call &a = comm.segment->calls[0], &b = comm.segment->calls[rank];
    if (a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
        a.count == b.count && a.number == b.number) {
      continue;
    }
    comm.fail_later(kInvalidUsage, "rank 0 calls " + in_words(a) + "; rank " +
                                       std::to_string(rank) + " calls " + in_words(b));
    comm.hang();
    return false;
  }
  return barrier(comm);
}

struct Work {
  Call call;
  const uint8_t* in;
  uint8_t* out;
  bool is_scaled;
  double factor;
};

// In blocks, of one rank's part of the data after the other where there are parts.
template <class T>
bool run(Comm& comm, const Work& work) {
  using W = typename Wide<T>::type;
  const Call& call = work.call;
  const size_t parts = call.kind == Kind::reduce_scatter ? static_cast<size_t>(comm.size) : 1;
  const size_t block = kArea / sizeof(W);
  const auto area = [&](int rank) { return reinterpret_cast<W*>(comm.segment->areas[rank]); };
  const bool gives = call.kind != Kind::broadcast || comm.rank == call.root;
  for (size_t part = 0; part < parts; ++part) {
    const bool takes = call.kind == Kind::reduce_scatter ? static_cast<int>(part) == comm.rank
                       : call.kind == Kind::reduce       ? call.root == comm.rank
                                                         : true;
    for (size_t begin = 0; begin < call.count; begin += block) {
      const size_t length = std::min(block, call.count - begin);
      const T* in = reinterpret_cast<const T*>(work.in) + part * call.count + begin;
      for (size_t i = 0; gives && i < length; ++i) {
        W value = widen(in[i]);
        if (work.is_scaled) value = static_cast<W>(value * static_cast<W>(work.factor));
        area(comm.rank)[i] = value;
      }
      if (!barrier(comm)) return false;
      T* out = reinterpret_cast<T*>(work.out) + begin;
      if (call.kind == Kind::all_gather) {
        for (int rank = 0; rank < comm.size; ++rank) {
          T* to = out + static_cast<size_t>(rank) * call.count;
          for (size_t i = 0; i < length; ++i) to[i] = narrow<T>(area(rank)[i]);
        }
      } else if (call.kind == Kind::broadcast) {
        for (size_t i = 0; i < length; ++i) out[i] = narrow<T>(area(call.root)[i]);
      } else if (takes) {
        for (size_t i = 0; i < length; ++i) {
          W value = area(0)[i];
          for (int rank = 1; rank < comm.size; ++rank) {
            value = static_cast<W>(value + area(rank)[i]);
          }
          out[i] = narrow<T>(value);
        }
      }
      if (!barrier(comm)) return false;
    }
  }
  return true;
}

int launch(Comm* comm, void* stream, const Work& work) {
  struct Job {
    Comm* comm;
    Work work;
  };
  const auto body = [](void* data) {
    const std::unique_ptr<Job> job(static_cast<Job*>(data));
    Comm& its = *job->comm;
    const Fault fault = planted();
    const bool here = fault.rank == its.rank && fault.call == job->work.call.number;
    if (here && fault.kind == "async") {
      its.fail_later(kRemoteError, "injected: a peer has gone");
    }
    if (here && (fault.kind == "async" || fault.kind == "hang")) return its.hang();
    if (!compare(its, job->work.call)) return;
    with_type(job->work.call.dtype,
              [&](auto tag) { run<typename decltype(tag)::type>(its, job->work); });
  };
  if (cuLaunchHostFunc(stream, body, new Job{comm, work}) != 0) {
    return comm->fail(kInvalidArgument, "the stream is not one");
  }
  return kSuccess;
}

// Now, or once the communicator is asked how it goes.
int take(Comm* comm, std::vector<std::function<int()>> launches) {
  if (++comm->launches % 3 == 0) {
    const std::lock_guard<std::mutex> asking(comm->asking);
    comm->late = std::move(launches);
    comm->polls = 0;
    comm->error = kInProgress;
    return kInProgress;
  }
  for (const auto& each : launches) {
    const int code = each();
    if (code != kSuccess) return code;
  }
  return kSuccess;
}

int refuse(const std::string& text, int code = kInvalidArgument) {
  t_last_error = text;
  if (t_depth > 0) t_group_error = code;
  return code;
}

int collective(Kind kind, const void* in, void* out, size_t count, int dtype, int op, int root,
               Comm* comm, void* stream) {
  const std::string name = kNames[static_cast<int>(kind)];
  if (!is_live(comm)) return refuse(name + ": the communicator has been destroyed, or is none");
  if (comm->error == kInProgress) {
    return refuse(name + ": the communicator is still busy with the last call", kInvalidUsage);
  }
  if (bytes_of(dtype) == 0) return refuse(name + ": wrong type " + std::to_string(dtype));
  const auto found = comm->scaled.find(op);
  if (op != kSum && found == comm->scaled.end()) return refuse(name + ": wrong operator");
  if (found != comm->scaled.end() && found->second.first != dtype) {
    return refuse(name + ": the operator is of another type");
  }
  if (root < 0 || root >= comm->size)
    return refuse(name + ": invalid root " + std::to_string(root));
  const size_t n = static_cast<size_t>(comm->size);
  const size_t in_bytes = bytes_of(dtype) * count * (kind == Kind::reduce_scatter ? n : 1);
  const size_t out_bytes = bytes_of(dtype) * count * (kind == Kind::all_gather ? n : 1);
  const auto at = [](const void* address, size_t bytes) {
    return static_cast<uint8_t*>(standInBytes(reinterpret_cast<uintptr_t>(address), bytes));
  };
  const bool gives = kind != Kind::broadcast || comm->rank == root;
  const bool takes = kind != Kind::reduce || comm->rank == root;
  const uint8_t* from = gives ? at(in, in_bytes) : nullptr;
  uint8_t* into = takes ? at(out, out_bytes) : nullptr;
  if (count > 0 && ((gives && from == nullptr) || (takes && into == nullptr))) {
    return refuse(name + ": an array does not lie in a GPU's memory");
  }
  const uint64_t number = ++comm->calls;
  const Fault fault = planted();
  if (fault.kind == "error" && fault.rank == comm->rank && fault.call == number) {
    comm->fail(kSystemError, "injected: a system call failed");
    if (t_depth > 0) t_group_error = kSystemError;
    return kSystemError;
  }
  const bool is_scaled = found != comm->scaled.end();
  const Work work{{kind, dtype, is_scaled ? kScaled : op, root, count, number},
                  from,
                  into,
                  is_scaled,
                  is_scaled ? found->second.second : 1};
  const auto start = [=] { return launch(comm, stream, work); };
  if (t_depth > 0) {
    t_group.emplace_back(comm, start);
    return kSuccess;
  }
  return take(comm, {start});
}

void count(const char* what) {
  if (std::getenv("STAND_IN_COUNT") == nullptr) return;
  std::fprintf(stderr, "stand-in for NCCL: %s\n", what);
}

int attach(Comm* comm, const std::string& name) {
  const Fault fault = planted();
  if (fault.rank == comm->rank && fault.kind == "init_error") {
    return comm->fail(kSystemError, "injected: no network");
  }
  if (fault.rank == comm->rank && fault.kind == "init_hang") {
    comm->hang();
    return kSuccess;
  }
  const int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Segment)) != 0) {
    return comm->fail(kSystemError, "no shared memory");
  }
  void* memory = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return comm->fail(kSystemError, "no shared memory");
  Segment* s = static_cast<Segment*>(memory);
  comm->segment = s;
  s->sizes[comm->rank] = comm->size;
  s->taken[comm->rank] += 1;
  const char* host_id = std::getenv("NCCL_HOSTID");
  std::snprintf(s->host_ids[comm->rank], sizeof s->host_ids[0], "%s", host_id ? host_id : "");
  s->attached.fetch_add(1);
  while (s->attached.load() < comm->size) {
    if (comm->is_aborted) {
      shm_unlink(name.c_str());
      return kSuccess;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  if (comm->rank == 0) shm_unlink(name.c_str());
  for (int rank = 0; rank < comm->size; ++rank) {
    if (s->sizes[rank] != comm->size || s->taken[rank] != 1) {
      return comm->fail(kInvalidUsage, "the ranks differ in how many they are, or who is who");
    }
    const bool is_twin = rank != comm->rank &&
                         std::strcmp(s->buses[rank], s->buses[comm->rank]) == 0 &&
                         std::strcmp(s->host_ids[rank], s->host_ids[comm->rank]) == 0;
    const char* shares = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (is_twin && (shares == nullptr || std::strcmp(shares, "1") != 0)) {
      return comm->fail(kInvalidUsage, "Duplicate GPU detected");
    }
  }
  return kSuccess;
}

}  // namespace

// --- nccl.h's.

EXPORT int ncclGetVersion(int* version) {
  const char* text = std::getenv("STAND_IN_NCCL_VERSION");
  *version = text == nullptr ? 22703 : std::atoi(text);
  return kSuccess;
}

EXPORT int ncclGetUniqueId(char* id) {
  static std::atomic<int> number{0};
  count("a new id");
  std::memset(id, 0, 128);
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::snprintf(id, 128, "/stand-in-nccl-%d-%d-%lx", getpid(), number++,
                static_cast<unsigned long>(now));
  return kSuccess;
}

struct UniqueId {
  char bytes[128];
};
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

EXPORT int ncclCommInitRankConfig(Comm** result, int size, UniqueId id, int rank,
                                  const Config* config) {
  int device = 0;
  if (cuCtxGetDevice(&device) != 0) return refuse("there is no current context", 1);
  if (config->magic != 0xcafebeef || config->version < 21400 ||
      config->size < offsetof(Config, blocking) + sizeof(int)) {
    return refuse("the configuration was not initialized");
  }
  if (config->blocking != 0) return refuse("easyddl has communicators that do not block");
  if (size < 1 || size > static_cast<int>(kMostRanks) || rank < 0 || rank >= size) {
    return refuse("wrong rank, or number of ranks");
  }
  count("a communicator");
  auto* comm = new Comm;
  comm->size = size;
  comm->rank = rank;
  {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    registry().live.insert(comm);
  }
  *result = comm;
  const std::string name = id.bytes;
  const auto connect = [=] {
    char bus[16];
    cuDeviceGetPCIBusId(bus, sizeof bus, device);
    const int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
    if (file >= 0 && ftruncate(file, sizeof(Segment)) == 0) {
      void* memory = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      std::memcpy(static_cast<Segment*>(memory)->buses[rank], bus, sizeof bus);
      munmap(memory, sizeof(Segment));
    }
    close(file);
    return attach(comm, name);
  };
  comm->error = kInProgress;
  std::thread([=] { comm->error = connect(); }).detach();
  return kInProgress;
}

EXPORT int ncclCommGetAsyncError(Comm* comm, int* error) {
  if (!is_live(comm)) return refuse("ncclCommGetAsyncError: the communicator has been destroyed");
  if (t_depth > 0) {
    t_last_error = "ncclGroupEnd is missing";
    return kInvalidUsage;
  }
  // Any thread may ask.
  const std::lock_guard<std::mutex> asking(comm->asking);
  if (!comm->late.empty() && ++comm->polls >= 2) {
    const auto late = std::exchange(comm->late, {});
    int code = kSuccess;
    for (const auto& each : late) code = code == kSuccess ? each() : code;
    int expected = kInProgress;
    comm->error.compare_exchange_strong(expected, code);
  }
  *error = comm->error;
  return kSuccess;
}

EXPORT int ncclCommAbort(Comm* comm) {
  if (!is_live(comm)) return refuse("ncclCommAbort: the communicator has been destroyed");
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().live.erase(comm);
  comm->is_aborted = true;
  return kSuccess;
}

EXPORT const char* ncclGetErrorString(int code) {
  switch (code) {
    case kSuccess:
      return "no error";
    case kSystemError:
      return "unhandled system error";
    case kInternalError:
      return "internal error";
    case kInvalidArgument:
      return "invalid argument";
    case kInvalidUsage:
      return "invalid usage";
    case kRemoteError:
      return "remote process exited or there was a network error";
    case kInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

EXPORT const char* ncclGetLastError(Comm* comm) {
  thread_local std::string text;
  text = t_last_error;
  if (comm != nullptr && is_live(comm)) {
    const std::lock_guard<std::mutex> lock(comm->mutex);
    if (!comm->last_error.empty()) text = comm->last_error;
  }
  return text.c_str();
}

EXPORT int ncclGroupStart() {
  ++t_depth;
  return kSuccess;
}

EXPORT int ncclGroupEnd() {
  if (t_depth == 0) return refuse("ncclGroupEnd: there is no group", kInvalidUsage);
  if (--t_depth > 0) return kSuccess;
  const auto calls = std::exchange(t_group, {});
  const int error = std::exchange(t_group_error, kSuccess);
  if (error != kSuccess) return error;
  std::map<Comm*, std::vector<std::function<int()>>> by_comm;
  for (const auto& [comm, start] : calls) by_comm[comm].push_back(start);
  int result = kSuccess;
  for (auto& [comm, starts] : by_comm) {
    const int code = take(comm, std::move(starts));
    if (code != kSuccess) result = code;
  }
  return result;
}

EXPORT int ncclAllReduce(const void* in, void* out, size_t count, int dtype, int op, Comm* comm,
                         void* stream) {
  return collective(Kind::allreduce, in, out, count, dtype, op, 0, comm, stream);
}

EXPORT int ncclReduceScatter(const void* in, void* out, size_t count, int dtype, int op, Comm* comm,
                             void* stream) {
  return collective(Kind::reduce_scatter, in, out, count, dtype, op, 0, comm, stream);
}

EXPORT int ncclAllGather(const void* in, void* out, size_t count, int dtype, Comm* comm,
                         void* stream) {
  return collective(Kind::all_gather, in, out, count, dtype, 0, 0, comm, stream);
}

EXPORT int ncclReduce(const void* in, void* out, size_t count, int dtype, int op, int root,
                      Comm* comm, void* stream) {
  return collective(Kind::reduce, in, out, count, dtype, op, root, comm, stream);
}

EXPORT int ncclBroadcast(const void* in, void* out, size_t count, int dtype, int root, Comm* comm,
                         void* stream) {
  return collective(Kind::broadcast, in, out, count, dtype, 0, root, comm, stream);
}

EXPORT int ncclRedOpCreatePreMulSum(int* op, const void* scalar, int dtype, int residence,
                                    Comm* comm) {
  if (!is_live(comm)) return refuse("ncclRedOpCreatePreMulSum: the communicator is destroyed");
  if (residence != 1) return refuse("the stand-in reads factors in the host's memory only");
  if (bytes_of(dtype) == 0) return refuse("ncclRedOpCreatePreMulSum: wrong type");
  double factor = 1;
  with_type(dtype, [&](auto tag) {
    typename decltype(tag)::type value;
    std::memcpy(&value, scalar, sizeof value);
    factor = static_cast<double>(widen(value));
  });
  *op = comm->next_op++;
  comm->scaled[*op] = {dtype, factor};
  return kSuccess;
}

EXPORT int ncclRedOpDestroy(int op, Comm* comm) {
  if (!is_live(comm)) return refuse("ncclRedOpDestroy: the communicator has been destroyed");
  return comm->scaled.erase(op) == 1 ? kSuccess : refuse("ncclRedOpDestroy: wrong operator");
}
