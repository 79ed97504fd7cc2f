// What the server counts, as Prometheus reads it. For many threads.
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
  /// Names are those of the table in metrics.cpp, without "tessera_"; another is an
  /// Error(internal). For want of memory something goes uncounted, and nothing is thrown.
  void add(std::string_view counter, double n = 1, Labels labels = {});
  void set(std::string_view gauge, double value, Labels labels = {});
  void observe(std::string_view histogram, double value);
  /// The sum of a counter over its labels.
  double value(const std::string& name) const;
  /// Names of the table that nobody has set yet.
  std::vector<std::string> untouched() const;
  /// `compat`: "vllm" or "llamacpp" has their names of what is counted alike beside these.
  std::string text(std::string_view compat = {}) const;

 private:
  struct Histogram {
    std::vector<double> counts;  // by bucket, not summed up; one more for what is above all
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
