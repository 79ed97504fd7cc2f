#include "rows.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tessera/base/allocator.h"
#include "tessera/base/cpu.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/targets.h"
#include "tessera/ops/block_cache.h"

namespace tessera::bench {
namespace {

double time_of(const Program& program, int64_t runs) {
  const auto before = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < runs; ++i) program();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count() /
         static_cast<double>(runs);
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

bool begins_with(std::string_view text, std::string_view beginning) {
  return text.substr(0, beginning.size()) == beginning;
}

const char* mark(const Row& row) {
  if (row.aim == Aim::none) return "-";
  const bool met = row.aim == Aim::at_least ? row.value >= row.bound : row.value <= row.bound;
  return met ? "pass" : "FAIL";
}

std::string bound_of(const Row& row) {
  if (row.aim == Aim::none) return "";
  return fmt::format("{} {:g}", row.aim == Aim::at_least ? ">=" : "<=", row.bound);
}

/// A line "key:  123 kB" of /proc/self/status, in bytes; 0 where there is none.
int64_t status_bytes(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (begins_with(line, key)) return 1024 * std::atoll(line.c_str() + key.size() + 1);
  return 0;
}

}  // namespace

Report::Report(int argc, char** argv, const char* about) : about_(about) {
  const auto refuse = [&](const std::string& why) {
    fmt::print(stderr, "{}: {}\nusage: {} [ROW ...] [--repeats N] [--json] [--list]\n", argv[0],
               why, argv[0]);
    std::exit(2);
  };
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--json") {
      json_ = true;
    } else if (word == "--list") {
      list_ = true;
    } else if (word == "--repeats") {
      const std::string_view n = i + 1 < argc ? argv[++i] : "";
      const auto [end, error] = std::from_chars(n.data(), n.data() + n.size(), repeats_);
      if (error != std::errc() || end != n.data() + n.size() || repeats_ < 1)
        refuse(fmt::format("--repeats \"{}\"; expected a number from 1 on", n));
    } else if (begins_with(word, "-")) {
      refuse(fmt::format("unknown option {}", word));
    } else {
      chosen_.emplace_back(word);
    }
  }
  if (!json_ && !list_)
    fmt::print("{}: {} threads, {}, {}, medians of {}\n{:<34} {:>9} {:<5} {:>8} {:<5} {}\n", about_,
               thread_count(), cpu_info().model, kernels::current_target(), repeats_, "row",
               "value", "", "aim", "mark", "");
}

bool Report::wanted(std::string_view name) const {
  return chosen_.empty() || std::any_of(chosen_.begin(), chosen_.end(),
                                        [&](const std::string& c) { return begins_with(name, c); });
}

void Report::group(const std::string& name, const std::function<void()>& body) {
  if (list_) {
    fmt::print("{}\n", name);
    return;
  }
  const bool inside = std::any_of(chosen_.begin(), chosen_.end(),
                                  [&](const std::string& c) { return begins_with(c, name); });
  if (inside || wanted(name)) body();
}

void Report::add(const Row& row) {
  if (!wanted(row.name)) return;
  rows_.push_back(row);
  if (json_) return;
  fmt::print("{:<34} {:>9.3g} {:<5} {:>8} {:<5} {}\n", row.name, row.value, row.unit, bound_of(row),
             mark(row), row.detail);
  std::fflush(stdout);
}

std::vector<double> Report::seconds(const std::vector<Program>& programs) const {
  constexpr double kTurn = 0.02;
  std::vector<int64_t> runs;
  for (const Program& program : programs) {
    const double first = time_of(program, 1);
    const double again = first < kTurn ? time_of(program, 1) : first;
    runs.push_back(std::clamp<int64_t>(std::llround(std::ceil(kTurn / again)), 1, 10000));
  }
  std::vector<std::vector<double>> turns(programs.size());
  for (int turn = 0; turn < repeats_; ++turn)
    for (size_t i = 0; i < programs.size(); ++i) turns[i].push_back(time_of(programs[i], runs[i]));
  std::vector<double> out;
  for (auto& times : turns) out.push_back(median(std::move(times)));
  return out;
}

int Report::finish() const {
  const auto failed = std::count_if(rows_.begin(), rows_.end(), [](const Row& row) {
    return std::strcmp(mark(row), "FAIL") == 0;
  });
  if (list_) return 0;
  if (!json_) {
    fmt::print("{} rows, {} fail\n", rows_.size(), failed);
    return 0;
  }
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Row& row : rows_) {
    nlohmann::ordered_json r = {{"row", row.name}, {"value", row.value}, {"unit", row.unit}};
    if (row.aim != Aim::none) r[row.aim == Aim::at_least ? "at_least" : "at_most"] = row.bound;
    r["mark"] = mark(row);
    r["detail"] = row.detail;
    rows.push_back(std::move(r));
  }
  const nlohmann::ordered_json out = {{"about", about_},
                                      {"cpu", cpu_info().model},
                                      {"target", kernels::current_target()},
                                      {"threads", thread_count()},
                                      {"repeats", repeats_},
                                      {"compiler", __VERSION__},
                                      {"failed", failed},
                                      {"rows", rows}};
  fmt::print("{}\n", out.dump(2));
  return 0;
}

int run(int argc,
        char** argv,
        const char* about,
        std::initializer_list<void (*)(Report& report)> rows) {
  keep_freed_memory();
  cap_onednn();
  ops::use_block_cache();
  Report report(argc, argv, about);
  for (const auto& add : rows) add(report);
  return report.finish();
}

int64_t peak_bytes(const Program& program) {
  ops::release_block_cache();
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // the high-water mark starts again from here
  const int64_t before = status_bytes("VmRSS:");
  program();
  return status_bytes("VmHWM:") - before;
}

double exponent(const std::vector<double>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double a = std::log(x[i]), b = std::log(y[i]);
    sx += a, sy += b, sxx += a * a, sxy += a * b;
  }
  return (n * sxy - sx * sy) / (n * sxx - sx * sx);
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.3g} ms", seconds * 1e3);
}

}  // namespace tessera::bench
