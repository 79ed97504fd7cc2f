// The CPU quota of a container: how many cores' time the Linux control groups (cgroups, version 2
// and 1) that this process belongs to let it use.
#pragma once

#include <filesystem>
#include <optional>

namespace tessera {

/// The least quota of the process's control group and of those around it, in cores: quota / period
/// of `cpu.max` (version 2) or `cpu.cfs_quota_us` and `cpu.cfs_period_us` (version 1). nullopt
/// where none is limited. `root` holds `proc` and the mounted hierarchies; files there that are
/// missing or malformed limit nothing.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

/// Cores that this process may use: those of its affinity, and no more than the quota, rounded up.
int available_cores(const std::filesystem::path& root = "/");

}  // namespace tessera
