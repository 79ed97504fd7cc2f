// What the server counts, as Prometheus reads it. For many threads.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::serve {

class Metrics {
 public:
  Metrics();
  /// Names are those of the table in metrics.cpp, without "tessera_"; another is an
  /// Error(internal). `labels`: `route="/v1/models",code="200"`.
  void add(const std::string& counter, double n = 1, const std::string& labels = {});
  void set(const std::string& gauge, double value, const std::string& labels = {});
  void observe(const std::string& histogram, double value);
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
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, double>> values_;  // counters and gauges
  std::map<std::string, Histogram> histograms_;
  std::set<std::string> touched_;
};

/// A value of a label, in quotes.
std::string label(const std::string& value);

}  // namespace tessera::serve
