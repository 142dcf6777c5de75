// A stand-in for the CUDA driver (libcuda.so.1), for tests on machines without a GPU.
//
// It does what easyddl asks of the driver, in memory of the host, and is as strict as it can be:
//
// - Memory of a "GPU" has an address at which nobody can read or write: only copies reach it.
// - Work goes through a few hardware queues, as many as CUDA_DEVICE_MAX_CONNECTIONS (8), which the
//   streams of a context share. The first piece of work in a queue leaves it when nothing has to
//   be waited for any more: until then all that was queued after it stays, of other streams too.
// - A stream is a thread, which does what has left its queue when it gets to it, and later: with
//   STAND_IN_DELAY microseconds at most before each piece of work. An order that is not asked for
//   does not hold, and numbers go wrong.
// - Work of the NULL stream waits for all that blocking streams were given before, and theirs for
//   that of the NULL stream. Streams that do not block have no part in that.
// - Freeing memory waits for all work of the context, and copies without a stream are the NULL
//   stream's.
// - While a stream is captured in the global mode, calls that could wait invalidate the capture,
//   whichever thread makes them, unless that thread's mode is the relaxed one.
// - Whether an event has come cannot be asked once the process has begun to exit.
// - Handles that are destroyed, memory that is not this kind or too short, and work without a
//   context are errors.
//
// STAND_IN_GPUS is how many GPUs there are (8); STAND_IN_MIG makes two instances of each pair;
// STAND_IN_OPEN makes memory of GPUs such that everybody can read and write it, as an MPI does
// that is made for CUDA.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kDeinitialized = 4,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotReady = 600,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureImplicit = 906,
};

int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

[[noreturn]] void die(const char* text) {
  std::fprintf(stderr, "stand-in for CUDA: %s\n", text);
  std::abort();
}

struct Context {
  int device;
};

// A run of memory: at `address` for the program, at `data` for the copies.
struct Memory {
  uintptr_t address;
  uint8_t* data;
  size_t bytes;
  bool is_on_gpu;
  int device;
  std::atomic<bool> is_freed{false};
};

struct Event {
  std::mutex mutex;
  std::condition_variable came;
  uint64_t recorded = 0, done = 0;
};

class Stream;

// Work that a stream has been given before: as many pieces as it had been given then.
struct Earlier {
  Stream* stream;
  uint64_t pieces;
};

// A hardware queue. In it all wait for the first, which waits for what must be done before it.
class Connection {
 public:
  Connection() {
    std::thread([this] { run(); }).detach();
  }

  struct Item {
    Stream* stream;
    uint64_t number;               // of the stream's
    std::vector<Earlier> earlier;  // what must be done before it
    bool is_wait;                  // it does nothing but wait
    std::function<void()> work;
  };

  std::mutex mutex;
  std::condition_variable came;
  std::deque<Item> items;

 private:
  void run();
};

class Stream {
 public:
  Stream(Context* context, bool blocks, Connection* connection)
      : context(context), blocks(blocks), connection_(connection) {
    std::thread([this] { run(); }).detach();
  }

  Context* const context;
  const bool blocks;  // it waits for the NULL stream, and that for it
  bool is_captured = false;

  void queue(std::function<void()> work, bool is_wait = false);

  void wait_for(uint64_t pieces) {
    std::unique_lock<std::mutex> lock(mutex_);
    came_.wait(lock, [&] { return done_ >= pieces; });
  }

  uint64_t queued() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return queued_;
  }

  // Of the connection: the work's turn has come.
  void start(std::function<void()> work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = std::move(work);
    came_.notify_all();
  }
  void finish() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++done_;
    came_.notify_all();
  }

 private:
  void run() {
    std::mt19937 random(static_cast<unsigned>(getpid()) ^
                        static_cast<unsigned>(reinterpret_cast<uintptr_t>(this) >> 6));
    const int delay = setting("STAND_IN_DELAY", 0);
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        came_.wait(lock, [this] { return work_ != nullptr; });
        work = std::exchange(work_, nullptr);
      }
      if (delay > 0 && random() % 2 == 0) {
        std::this_thread::sleep_for(
            std::chrono::microseconds(random() % static_cast<unsigned>(delay)));
      }
      work();
      finish();
    }
  }

  Connection* const connection_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::function<void()> work_;
  uint64_t queued_ = 0, done_ = 0;
};

void Connection::run() {
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    came.wait(lock, [this] { return !items.empty(); });
    Item item = std::move(items.front());
    items.pop_front();
    lock.unlock();
    item.stream->wait_for(item.number - 1);
    for (const Earlier& each : item.earlier) each.stream->wait_for(each.pieces);
    if (item.is_wait) {
      item.work();
      item.stream->finish();
    } else {
      item.stream->start(std::move(item.work));
    }
    lock.lock();
  }
}

// Never destroyed: streams' threads run until the process ends.
struct State {
  std::mutex mutex;
  std::atomic<bool> is_initialized{false};
  std::atomic<bool> has_ended{false};
  std::map<int, Context*> contexts;
  std::map<uintptr_t, std::shared_ptr<Memory>> memory;  // by address
  std::set<Stream*> streams;
  std::map<Context*, Stream*> null_streams;
  std::map<std::pair<Context*, size_t>, Connection*> connections;
  std::map<Context*, size_t> made;  // streams
  std::map<Event*, std::shared_ptr<Event>> events;
  Stream* captured = nullptr;  // and how, and whether that has gone wrong
  int capture_mode = 0;
  std::thread::id capturer;
  bool capture_is_invalid = false;
};

State& state() {
  static State* const all = new State;
  return *all;
}

thread_local Context* t_current = nullptr;
enum { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };
thread_local int t_capture_mode = kGlobal;

// A stream of this context, by its number among them. To be called with the lock.
Stream* make_stream(Context* context, bool blocks) {
  State& all = state();
  const auto connections = static_cast<size_t>(setting("CUDA_DEVICE_MAX_CONNECTIONS", 8));
  Connection*& its = all.connections[{context, all.made[context]++ % connections}];
  if (its == nullptr) its = new Connection;
  return new Stream(context, blocks, its);
}

// What the NULL stream and the blocking ones wait for of each other.
std::vector<Earlier> earlier_than(Stream* stream) {
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<Earlier> earlier;
  const auto found = all.null_streams.find(stream->context);
  if (found == all.null_streams.end() || !stream->blocks) return earlier;
  if (found->second != stream) return {{found->second, found->second->queued()}};
  for (Stream* each : all.streams) {
    if (each->context == stream->context && each->blocks) earlier.push_back({each, each->queued()});
  }
  return earlier;
}

void Stream::queue(std::function<void()> work, bool is_wait) {
  if (is_captured) return;
  std::vector<Earlier> earlier = earlier_than(this);
  const std::lock_guard<std::mutex> order(connection_->mutex);
  uint64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    number = ++queued_;
  }
  connection_->items.push_back({this, number, std::move(earlier), is_wait, std::move(work)});
  connection_->came.notify_one();
}

// All work that the context has been given.
void synchronize(Context* context) {
  std::vector<Stream*> streams;
  {
    State& all = state();
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (Stream* each : all.streams) {
      if (each->context == context) streams.push_back(each);
    }
    const auto found = all.null_streams.find(context);
    if (found != all.null_streams.end()) streams.push_back(found->second);
  }
  for (Stream* each : streams) each->wait_for(each->queued());
}

// For calls that a capture does not bear.
bool breaks_capture() {
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.captured == nullptr || t_capture_mode == kRelaxed || all.capture_mode == kRelaxed) {
    return false;
  }
  if (all.capture_mode == kThreadLocal && all.capturer != std::this_thread::get_id()) return false;
  all.capture_is_invalid = true;
  return true;
}

std::shared_ptr<Memory> find_memory(uintptr_t address, size_t bytes) {
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto after = all.memory.upper_bound(address);
  if (after == all.memory.begin()) return nullptr;
  const std::shared_ptr<Memory>& memory = std::prev(after)->second;
  if (address + bytes > memory->address + memory->bytes ||
      address >= memory->address + memory->bytes)
    return nullptr;
  return memory;
}

uint8_t* at(const std::shared_ptr<Memory>& memory, uintptr_t address) {
  if (memory->is_freed) die("work touches memory that has been freed");
  return memory->data + (address - memory->address);
}

int allocate(uintptr_t* address, size_t bytes, bool on_gpu) {
  if (t_current == nullptr) return kInvalidContext;
  if (bytes == 0) return kInvalidValue;
  if (breaks_capture()) return kCaptureUnsupported;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t size = (bytes + page - 1) / page * page;
  auto memory = std::make_shared<Memory>();
  memory->bytes = bytes;
  memory->is_on_gpu = on_gpu;
  memory->device = t_current->device;
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return kOutOfMemory;
  memory->data = static_cast<uint8_t*>(data);
  std::memset(memory->data, 0xa5, bytes);  // not zeros, which might do by chance
  void* seen = data;
  const bool is_hidden = on_gpu && setting("STAND_IN_OPEN", 0) == 0;
  if (is_hidden) seen = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (seen == MAP_FAILED) return kOutOfMemory;
  memory->address = reinterpret_cast<uintptr_t>(seen);
  *address = memory->address;
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.memory[memory->address] = memory;
  return kSuccess;
}

int release(uintptr_t address, bool on_gpu) {
  if (breaks_capture()) return kCaptureUnsupported;
  State& all = state();
  if (const auto memory = find_memory(address, 1)) {
    Context* context = nullptr;
    {
      const std::lock_guard<std::mutex> lock(all.mutex);
      context = all.contexts[memory->device];
    }
    synchronize(context);
  }
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.memory.find(address);
  if (found == all.memory.end() || found->second->is_on_gpu != on_gpu) return kInvalidValue;
  // Its pages stay, so that late work finds out instead of crashing.
  found->second->is_freed = true;
  all.memory.erase(found);
  return kSuccess;
}

Stream* find_stream(Stream* stream) {
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (stream != nullptr) return all.streams.count(stream) != 0 ? stream : nullptr;
  if (t_current == nullptr) return nullptr;
  Stream*& its = all.null_streams[t_current];
  if (its == nullptr) its = make_stream(t_current, true);
  return its;
}

std::shared_ptr<Event> find_event(Event* event) {
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.events.find(event);
  return found == all.events.end() ? nullptr : found->second;
}

std::atomic<uint64_t> g_to_host{0};  // bytes that streams have copied there

int copy(uintptr_t to, bool to_gpu, uintptr_t from, bool from_gpu, size_t bytes, Stream* stream) {
  Stream* const its = find_stream(stream);
  if (its == nullptr) return kInvalidHandle;
  if (bytes == 0) return kSuccess;
  const auto target = find_memory(to, bytes), source = find_memory(from, bytes);
  if (!target || !source || target->is_on_gpu != to_gpu || source->is_on_gpu != from_gpu) {
    return kInvalidValue;
  }
  its->queue([=] {
    std::memmove(at(target, to), at(source, from), bytes);
    if (from_gpu && !to_gpu) g_to_host += bytes;
  });
  return kSuccess;
}

int count_devices() { return setting("STAND_IN_GPUS", 8); }

// This rank's host, where one machine plays several.
std::string host_of_rank() {
  const char* hosts = std::getenv("EASYDDL_HOSTS");
  const char* rank = nullptr;
  for (const char* name : {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"}) {
    if (rank == nullptr) rank = std::getenv(name);
  }
  if (hosts == nullptr || rank == nullptr) return "";
  std::string rest = hosts;
  for (int i = std::atoi(rank); i > 0 && rest.find(',') != std::string::npos; --i) {
    rest = rest.substr(rest.find(',') + 1);
  }
  return rest.substr(0, rest.find(','));
}

}  // namespace

// What only the stand-in has.

// Where the bytes of a GPU really are, for the stand-in for NCCL; null if it holds no such run.
EXPORT void* standInBytes(uintptr_t address, size_t bytes) {
  const auto memory = find_memory(address, bytes);
  return memory && memory->is_on_gpu ? at(memory, address) : nullptr;
}

// How many bytes streams have copied to the host.
EXPORT uint64_t standInToHost() { return g_to_host; }

// How many streams and events there are.
EXPORT size_t standInStreams() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return state().streams.size();
}

EXPORT size_t standInEvents() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return state().events.size();
}

// Work that takes so many microseconds.
EXPORT int standInSleep(Stream* stream, int microseconds) {
  Stream* const its = find_stream(stream);
  if (its == nullptr) return kInvalidHandle;
  its->queue([=] { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); });
  return kSuccess;
}

// Work that multiplies float32 on a GPU.
EXPORT int standInScale(uintptr_t address, size_t count, float factor, Stream* stream) {
  Stream* const its = find_stream(stream);
  const auto memory = find_memory(address, count * sizeof(float));
  if (its == nullptr || !memory) return kInvalidValue;
  its->queue([=] {
    auto* values = reinterpret_cast<float*>(at(memory, address));
    for (size_t i = 0; i < count; ++i) values[i] *= factor;
  });
  return kSuccess;
}

// cuda.h's.

EXPORT int cuInit(unsigned flags) {
  if (flags != 0) return kInvalidValue;
  if (count_devices() == 0) return kNoDevice;
  if (!state().is_initialized.exchange(true)) std::atexit([] { state().has_ended = true; });
  return kSuccess;
}

EXPORT int cuDriverGetVersion(int* version) {
  *version = 12080;
  return kSuccess;
}

EXPORT int cuGetErrorString(int code, const char** text) {
  static const std::map<int, const char*> texts{
      {kSuccess, "no error"},
      {kInvalidValue, "invalid argument"},
      {kOutOfMemory, "out of memory"},
      {kNoDevice, "no CUDA-capable device is detected"},
      {kInvalidDevice, "invalid device ordinal"},
      {kInvalidContext, "invalid device context"},
      {kInvalidHandle, "invalid resource handle"},
      {kNotReady, "device not ready"},
      {kCaptureUnsupported, "operation not permitted when stream is capturing"},
      {kCaptureInvalidated, "operation failed due to a previous error during capture"},
      {kCaptureImplicit,
       "operation would make the legacy stream depend on a capturing blocking stream"}};
  const auto found = texts.find(code);
  if (found == texts.end()) return kInvalidValue;
  *text = found->second;
  return kSuccess;
}

EXPORT int cuDeviceGetCount(int* count) {
  *count = count_devices();
  return kSuccess;
}

EXPORT int cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= count_devices()) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

EXPORT int cuDeviceGetName(char* name, int length, int device) {
  std::snprintf(name, static_cast<size_t>(length), "stand-in %d", device);
  return kSuccess;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  std::memset(uuid, 0, 16);
  const size_t host = std::hash<std::string>()(host_of_rank());
  std::memcpy(uuid, &host, sizeof host);
  uuid[15] = static_cast<unsigned char>(device);
  return kSuccess;
}

// Instances of one GPU have UUIDs of their own, and its place on the bus.
EXPORT int cuDeviceGetPCIBusId(char* text, int length, int device) {
  const unsigned host = static_cast<unsigned>(std::hash<std::string>()(host_of_rank()) & 0xffff);
  const int gpu = setting("STAND_IN_MIG", 0) != 0 ? device / 2 : device;
  std::snprintf(text, static_cast<size_t>(length), "%04X:%02X:00.0", host, gpu);
  return kSuccess;
}

EXPORT int cuDevicePrimaryCtxRetain(Context** context, int device) {
  if (device < 0 || device >= count_devices()) return kInvalidDevice;
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Context*& its = all.contexts[device];
  if (its == nullptr) its = new Context{device};
  *context = its;
  return kSuccess;
}

EXPORT int cuCtxGetCurrent(Context** context) {
  *context = t_current;
  return kSuccess;
}

EXPORT int cuCtxSetCurrent(Context* context) {
  t_current = context;
  return kSuccess;
}

EXPORT int cuCtxGetDevice(int* device) {
  if (t_current == nullptr) return kInvalidContext;
  *device = t_current->device;
  return kSuccess;
}

EXPORT int cuPointerGetAttribute(void* value, int attribute, uintptr_t address) {
  const auto memory = find_memory(address, 1);
  if (!memory) return kInvalidValue;
  if (attribute == 2) {
    *static_cast<unsigned*>(value) = memory->is_on_gpu ? 2 : 1;
  } else if (attribute == 9) {
    *static_cast<int*>(value) = memory->device;
  } else {
    return kInvalidValue;
  }
  return kSuccess;
}

EXPORT int cuMemAlloc_v2(uintptr_t* address, size_t bytes) {
  return allocate(address, bytes, true);
}
EXPORT int cuMemFree_v2(uintptr_t address) { return release(address, true); }

EXPORT int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  uintptr_t address = 0;
  const int code = allocate(&address, bytes, false);
  *memory = reinterpret_cast<void*>(address);
  return code;
}

EXPORT int cuMemFreeHost(void* memory) {
  return release(reinterpret_cast<uintptr_t>(memory), false);
}

namespace {

// Without a stream: in the NULL stream's turn, from and to memory of any kind of the host's.
int copy_now(uintptr_t on_gpu, size_t bytes, const std::function<void(uint8_t*)>& act) {
  if (breaks_capture()) return kCaptureUnsupported;
  const auto memory = find_memory(on_gpu, bytes);
  Stream* const stream = find_stream(nullptr);
  if (!memory || !memory->is_on_gpu) return kInvalidValue;
  if (stream == nullptr) return kInvalidContext;
  stream->queue([&] { act(at(memory, on_gpu)); });
  stream->wait_for(stream->queued());
  return kSuccess;
}

}  // namespace

EXPORT int cuMemcpyHtoD_v2(uintptr_t to, const void* from, size_t bytes) {
  return copy_now(to, bytes, [=](uint8_t* data) { std::memcpy(data, from, bytes); });
}

EXPORT int cuMemcpyDtoH_v2(void* to, uintptr_t from, size_t bytes) {
  return copy_now(from, bytes, [=](uint8_t* data) { std::memcpy(to, data, bytes); });
}

EXPORT int cuMemcpyDtoHAsync_v2(void* to, uintptr_t from, size_t bytes, Stream* stream) {
  return copy(reinterpret_cast<uintptr_t>(to), false, from, true, bytes, stream);
}

EXPORT int cuMemcpyHtoDAsync_v2(uintptr_t to, const void* from, size_t bytes, Stream* stream) {
  return copy(to, true, reinterpret_cast<uintptr_t>(from), false, bytes, stream);
}

EXPORT int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, Stream* stream) {
  return copy(to, true, from, true, bytes, stream);
}

EXPORT int cuMemsetD8Async(uintptr_t to, unsigned char value, size_t bytes, Stream* stream) {
  Stream* const its = find_stream(stream);
  const auto target = find_memory(to, bytes);
  if (its == nullptr) return kInvalidHandle;
  if (!target || !target->is_on_gpu) return kInvalidValue;
  its->queue([=] { std::memset(at(target, to), value, bytes); });
  return kSuccess;
}

EXPORT int cuStreamCreate(Stream** stream, unsigned flags) {
  if (t_current == nullptr) return kInvalidContext;
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  *stream = make_stream(t_current, flags == 0);
  all.streams.insert(*stream);
  return kSuccess;
}

EXPORT int cuStreamDestroy_v2(Stream* stream) {
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.streams.erase(stream) != 0 ? kSuccess : kInvalidHandle;
}

EXPORT int cuStreamSynchronize(Stream* stream) {
  Stream* const its = find_stream(stream);
  if (its == nullptr) return kInvalidHandle;
  if (breaks_capture()) return kCaptureUnsupported;
  its->wait_for(its->queued());
  return kSuccess;
}

// What a captured stream is given from here on is not done.
EXPORT int cuStreamBeginCapture_v2(Stream* stream, int mode) {
  Stream* const its = find_stream(stream);
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (its == nullptr) return kInvalidHandle;
  if (stream == nullptr || all.captured != nullptr) return kCaptureUnsupported;
  its->is_captured = true;
  all.captured = its;
  all.capture_mode = mode;
  all.capturer = std::this_thread::get_id();
  all.capture_is_invalid = false;
  return kSuccess;
}

EXPORT int cuStreamEndCapture(Stream* stream, void** graph) {
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  *graph = nullptr;
  if (stream == nullptr || all.captured != stream) return kInvalidHandle;
  stream->is_captured = false;
  all.captured = nullptr;
  return all.capture_is_invalid ? kCaptureInvalidated : kSuccess;
}

EXPORT int cuStreamIsCapturing(Stream* stream, int* status) {
  Stream* const its = find_stream(stream);
  if (its == nullptr) return kInvalidHandle;
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  *status = its->is_captured ? all.capture_is_invalid ? 2 : 1 : 0;
  const bool is_implied = stream == nullptr && all.captured != nullptr && all.captured->blocks;
  return is_implied ? kCaptureImplicit : kSuccess;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, t_capture_mode);
  return kSuccess;
}

EXPORT int cuEventCreate(Event** event, unsigned) {
  if (t_current == nullptr) return kInvalidContext;
  auto made = std::make_shared<Event>();
  *event = made.get();
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.events[made.get()] = made;
  return kSuccess;
}

EXPORT int cuEventDestroy_v2(Event* event) {
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.events.erase(event) != 0 ? kSuccess : kInvalidHandle;
}

EXPORT int cuEventRecord(Event* event, Stream* stream) {
  const auto its = find_event(event);
  Stream* const on = find_stream(stream);
  if (!its || on == nullptr) return kInvalidHandle;
  uint64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(its->mutex);
    number = ++its->recorded;
  }
  on->queue([its, number] {
    const std::lock_guard<std::mutex> lock(its->mutex);
    its->done = std::max(its->done, number);
    its->came.notify_all();
  });
  return kSuccess;
}

EXPORT int cuEventQuery(Event* event) {
  if (state().has_ended) return kDeinitialized;
  const auto its = find_event(event);
  if (!its) return kInvalidHandle;
  if (breaks_capture()) return kCaptureUnsupported;
  const std::lock_guard<std::mutex> lock(its->mutex);
  return its->done >= its->recorded ? kSuccess : kNotReady;
}

// For what was recorded last when it is called; for nothing if nothing was.
EXPORT int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  const auto its = find_event(event);
  Stream* const on = find_stream(stream);
  if (!its || on == nullptr) return kInvalidHandle;
  uint64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(its->mutex);
    number = its->recorded;
  }
  const auto wait = [its, number] {
    std::unique_lock<std::mutex> lock(its->mutex);
    its->came.wait(lock, [&] { return its->done >= number; });
  };
  on->queue(wait, true);
  return kSuccess;
}

EXPORT int cuLaunchHostFunc(Stream* stream, void (*function)(void*), void* data) {
  Stream* const its = find_stream(stream);
  if (its == nullptr) return kInvalidHandle;
  its->queue([=] { function(data); });
  return kSuccess;
}
