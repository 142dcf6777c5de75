// The versions of the libraries for GPUs.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace easyddl {

// Returns the versions that `easyddl doctor` shows, as pairs of a name and a text. Opens the CUDA
// driver and NCCL.
std::vector<std::pair<std::string, std::string>> gpu_versions();

}  // namespace easyddl
