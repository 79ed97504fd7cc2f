// Benchmark rows: programs for one task, measured in turn within one run, and what their ratio has
// to reach.
//
// Goals: a figure that survives a busy machine (medians of turns that share its noise), a mark for
// every stated aim, rows that run by name. Not a goal: profiles of single kernels; those are in
// kernels_bench.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::bench {

using Program = std::function<void()>;

/// Must hold for the row to pass.
enum class Aim { none, at_least, at_most };

struct Row {
  std::string name;
  double value = 0;
  std::string unit = "x";  // "x": a ratio
  Aim aim = Aim::none;
  double bound = 0;
  std::string detail;  // what was divided by what, with its figures
};

class Report {
 public:
  /// Arguments: [ROW ...] [--repeats N] [--json] [--list]; a row is chosen by the beginning of its
  /// name. Prints the usage and exits with 2 when it understands one of them not.
  Report(int argc, char** argv, const char* about);

  /// Runs `body`, which adds the rows that begin with `name`, if one of them is wanted.
  void group(const std::string& name, const std::function<void()>& body);

  /// Prints the row and keeps it, if it is wanted.
  void add(const Row& row);

  /// Seconds of each program: the median over `repeats` turns, in each of which all of them run one
  /// after another. Programs below 20 ms run several times in a turn. One round before warms up.
  std::vector<double> seconds(const std::vector<Program>& programs) const;

  /// Ends the table, or prints all as JSON. Returns the exit status: 0, whatever the marks are.
  int finish() const;

 private:
  bool wanted(std::string_view name) const;

  std::string about_;
  std::vector<std::string> chosen_;
  int repeats_ = 5;
  bool json_ = false, list_ = false;
  std::vector<Row> rows_;
};

/// A program of rows: as a training process is set up, then each of `rows`. Returns the exit
/// status.
int run(int argc,
        char** argv,
        const char* about,
        std::initializer_list<void (*)(Report& report)> rows);

/// Bytes by which the memory of this process grew at most while `program` ran. What earlier
/// programs freed is given back to the system first.
int64_t peak_bytes(const Program& program);

/// The slope of log y over log x, by least squares: y ~ x^slope.
double exponent(const std::vector<double>& x, const std::vector<double>& y);

/// "12.3 ms"
std::string milliseconds(double seconds);

}  // namespace tessera::bench
