// Calls of the system that fail when a job wants them to. For LD_PRELOAD; see start_job.py.
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace {

struct Reservation {
  long begin, length;
};

int g_code = 0, g_times = 0;
Reservation g_reserved[4096];
int g_count = 0;
size_t g_least_bytes = 0;
bool g_hides_memory = false;

template <class F>
F* original(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

// posix_fallocate fails so often, with this code.
void fail_fallocate(int code, int times) {
  g_code = code;
  g_times = times;
}

// What this process has reserved by it: returns how many ranges there are, and writes them.
int reserved(long* begins, long* lengths) {
  for (int i = 0; i < g_count; ++i) {
    begins[i] = g_reserved[i].begin;
    lengths[i] = g_reserved[i].length;
  }
  return g_count;
}

void forget_reserved() { g_count = 0; }

// The kernel counts cores in so many bytes.
void need_bytes_for_cores(int bytes) { g_least_bytes = static_cast<size_t>(bytes); }

// Memory of other processes cannot be seen.
void hide_memory() { g_hides_memory = true; }

int posix_fallocate(int fd, off_t begin, off_t length) {
  if (g_times > 0) {
    --g_times;
    return g_code;
  }
  if (g_count < 4096) g_reserved[g_count++] = {begin, length};
  return original<decltype(posix_fallocate)>("posix_fallocate")(fd, begin, length);
}

int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t* cores) noexcept {
  if (bytes < g_least_bytes) {
    errno = EINVAL;
    return -1;
  }
  return original<decltype(sched_getaffinity)>("sched_getaffinity")(pid, bytes, cores);
}

ssize_t readlink(const char* path, char* target, size_t bytes) noexcept {
  if (g_hides_memory && std::strstr(path, "/fd/") != nullptr) {
    errno = EACCES;
    return -1;
  }
  return original<decltype(readlink)>("readlink")(path, target, bytes);
}
}
