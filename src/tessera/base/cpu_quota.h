// CPU quota of a container: how many cores the Linux control groups (cgroups, version 2 and 1) of
// this process allow.
#pragma once

#include <filesystem>
#include <optional>

namespace tessera {

/// The minimum quota over the process's control group and its parents, in cores: quota / period of
/// `cpu.max` (version 2) or `cpu.cfs_quota_us` and `cpu.cfs_period_us` (version 1). nullopt without
/// a limit. `root` contains `proc` and the mounted hierarchies; missing or malformed files there
/// are no limit.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

/// Number of cores for this process: its affinity, limited by the quota, rounded up.
int available_cores(const std::filesystem::path& root = "/");

}  // namespace tessera
