#include "runtime/local_ranks.h"

#include <sys/syscall.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

namespace easyddl {
namespace {

namespace fs = std::filesystem;

struct Process {
  std::string name;
  char state = 'X';
  int parent = 0;
  uint64_t start = 0;  // in ticks since the boot
};

// A file of /proc; empty if its process has ended, or may not be examined.
std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

fs::path folder_of(int process) { return fs::path("/proc") / std::to_string(process); }

// The entries of a folder whose names are numbers.
std::vector<int> numbers_in(const fs::path& folder) {
  std::vector<int> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

// The processes of this host that have not ended, by their ids. proc_pid_stat(5) explains the file.
std::map<int, Process> running_processes() {
  std::map<int, Process> found;
  for (const int id : numbers_in("/proc")) {
    const std::string text = read(folder_of(id) / "stat");
    const auto begin = text.find('('), end = text.rfind(')');
    if (end == std::string::npos) continue;
    Process process;
    process.name = text.substr(begin + 1, end - begin - 1);
    std::istringstream fields(text.substr(end + 1));
    fields >> process.state >> process.parent;
    std::string skipped;
    for (int i = 5; i < 22; ++i) fields >> skipped;
    fields >> process.start;
    if (process.state != 'Z' && process.state != 'X') found[id] = process;
  }
  return found;
}

// The value of a variable in the environment with which a process started; empty without it.
std::string variable_of(int process, const std::string& name) {
  const std::string text = '\0' + read(folder_of(process) / "environ");
  const std::string key = '\0' + name + '=';
  const auto at = text.find(key);
  return at == std::string::npos ? "" : text.c_str() + at + key.size();
}

}  // namespace

LocalRanks::LocalRanks(int agent, int count, std::string variable,
                       std::vector<std::string> launchers)
    : agent_(agent),
      count_(count),
      variable_(std::move(variable)),
      launchers_(std::move(launchers)) {}

int LocalRanks::ended() const {
  // A quick test, for the many looks at a job in which each rank's first process runs.
  if (agent_ == 0 || static_cast<int>(children_of_agent().size()) >= count_) return 0;
  const auto processes = running_processes();
  if (processes.count(agent_) == 0) return 0;
  // The process that started a process as a rank; 0 for a process whose parent has ended.
  const auto launcher_of = [&](int id) {
    for (auto at = processes.find(id); at != processes.end(); at = processes.find(id)) {
      id = at->second.parent;
      const auto parent = processes.find(id);
      if (parent == processes.end()) return 0;
      if (std::count(launchers_.begin(), launchers_.end(), parent->second.name) > 0) return id;
    }
    return 0;
  };
  // Ids tell the order of processes that started in the same tick.
  const auto start_of = [&](int id) { return std::pair(processes.at(id).start, id); };
  std::set<std::string> numbers;
  int unknown = 0;
  for (const auto& [id, process] : processes) {
    const int launcher = launcher_of(id);
    // Of another job, or left behind by an earlier one.
    if (launcher != agent_ && (launcher != 0 || start_of(id) < start_of(agent_))) continue;
    const std::string number = variable_of(id, variable_);
    if (!number.empty()) {
      numbers.insert(number);
    } else if (process.parent == agent_) {
      ++unknown;
    }
  }
  return std::max(0, count_ - static_cast<int>(numbers.size()) - unknown);
}

bool LocalRanks::any_waits_for_input() const {
  const std::vector<int> children = children_of_agent();
  return std::any_of(children.begin(), children.end(), [&](int child) {
    std::istringstream call(read(folder_of(child) / "syscall"));
    std::string number, descriptor;
    call >> number >> descriptor;
    const bool reads = number == std::to_string(SYS_read) && descriptor == "0x0";
    return reads && variable_of(child, variable_) != "0";
  });
}

std::vector<int> LocalRanks::children_of_agent() const {
  std::vector<int> children;
  const fs::path threads = folder_of(agent_) / "task";
  for (const int thread : numbers_in(threads)) {
    std::istringstream ids(read(threads / std::to_string(thread) / "children"));
    children.insert(children.end(), std::istream_iterator<int>(ids), std::istream_iterator<int>());
  }
  return children;
}

}  // namespace easyddl
