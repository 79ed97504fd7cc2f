#include "tessera/base/cpu_quota.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

std::vector<std::string> lines_of(const fs::path& file) {
  std::vector<std::string> lines;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool has(const std::vector<std::string>& list, std::string_view one) {
  return std::find(list.begin(), list.end(), one) != list.end();
}

/// An integer above 0; "max", -1 and anything else have none.
std::optional<double> positive(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value > 0 ? std::optional(static_cast<double>(value)) : std::nullopt;
}

std::string first_line(const fs::path& file) {
  const std::vector<std::string> lines = lines_of(file);
  return lines.empty() ? "" : lines[0];
}

/// The quota of one group, for either version.
std::optional<double> quota_of(const fs::path& group) {
  std::vector<std::string> both = split(first_line(group / "cpu.max"), ' ');
  if (both.size() != 2)
    both = {first_line(group / "cpu.cfs_quota_us"), first_line(group / "cpu.cfs_period_us")};
  const auto quota = positive(both[0]), period = positive(both[1]);
  return quota && period ? std::optional(*quota / *period) : std::nullopt;
}

/// A mounted hierarchy that may have the cpu controller.
struct Hierarchy {
  bool version_2;
  std::string root;  // the group that is mounted there
  fs::path folder;
};

/// Lines of mountinfo: id parent device root mount-point options... - type source super-options
std::vector<Hierarchy> hierarchies(const fs::path& root) {
  std::vector<Hierarchy> out;
  for (const std::string& line : lines_of(root / "proc/self/mountinfo")) {
    const std::vector<std::string> words = split(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    const bool version_2 = dash[1] == "cgroup2";
    if (!version_2 && (dash[1] != "cgroup" || !has(split(dash[3], ','), "cpu"))) continue;
    out.push_back({version_2, words[3], root / fs::path(words[4]).relative_path()});
  }
  return out;
}

/// Lines of /proc/self/cgroup: id:controllers:path, of version 2 with neither id nor controllers.
std::string group_in(const std::vector<std::string>& lines, bool version_2) {
  for (const std::string& line : lines) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version_2 ? controllers.empty() : has(split(controllers, ','), "cpu"))
      return line.substr(second + 1);
  }
  return "";
}

/// The path of the group below the mounted one; "" if it is that one or outside of it, as in a
/// container that sees its own group only.
fs::path below(const std::string& group, const std::string& mounted) {
  const fs::path relative = fs::path(group).lexically_relative(mounted);
  const bool outside = relative.empty() || has({relative.begin(), relative.end()}, "..");
  return outside || relative == "." ? fs::path() : relative;
}

}  // namespace

std::optional<double> cpu_quota(const fs::path& root) {
  std::optional<double> least;
  const std::vector<std::string> groups = lines_of(root / "proc/self/cgroup");
  for (const Hierarchy& hierarchy : hierarchies(root)) {
    fs::path folder = below(group_in(groups, hierarchy.version_2), hierarchy.root);
    for (bool top = false; !top; folder = folder.parent_path()) {
      top = folder.empty();
      if (const auto quota = quota_of(hierarchy.folder / folder))
        least = std::min(least.value_or(*quota), *quota);
    }
  }
  return least;
}

int available_cores(const fs::path& root) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  const int cores = std::max(1, known ? CPU_COUNT(&set) : omp_get_num_procs());
  const std::optional<double> quota = cpu_quota(root);
  return quota && *quota < cores ? std::max(1, static_cast<int>(std::ceil(*quota))) : cores;
}

}  // namespace tessera
