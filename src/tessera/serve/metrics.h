// Prometheus metrics of the server. Thread-safe.
#pragma once

#include <initializer_list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::serve {

class Metrics {
 public:
  Metrics();
  /// Names and values, as {{"route", "/v1/models"}, {"code", "200"}}.
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;
  /// Names are those of the table in metrics.cpp, without "tessera_"; an unknown one is
  /// Error(internal). Out of memory, a value is not counted and nothing is thrown.
  void add(std::string_view counter, double n = 1, Labels labels = {});
  void set(std::string_view gauge, double value, Labels labels = {});
  void observe(std::string_view histogram, double value);
  /// The sum of a counter over its labels.
  double value(const std::string& name) const;
  /// Metrics of the table that have never been set.
  std::vector<std::string> untouched() const;
  /// The text exposition format. `compat`: "vllm" or "llamacpp" adds their names for the same
  /// values.
  std::string text(std::string_view compat = {}) const;

 private:
  struct Histogram {
    std::vector<double> counts;  // by bucket, not cumulative; one more above all bounds
    double sum = 0;
  };
  template <class Count>
  void count(std::string_view name, const Count& count);

  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, double>> values_;  // counters and gauges
  std::map<std::string, Histogram> histograms_;
  std::set<std::string> touched_;
};

}  // namespace tessera::serve
