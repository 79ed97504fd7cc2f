// Queries that grow with their position, so that a softmax over many keys stays sharp:
//   q_i <- q_i (1 + scale ln(1 + floor((i + offset) / floor)))
// and by log-n attention, which keeps the entropy of equal scores, times ln(i + offset) /
// ln(log_length). Llama 4; Su 2021 (kexue.fm 8823), Chiang, Cholak 2022, arXiv:2202.12172 and Qwen,
// arXiv:2309.16609, 2.3.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct QueryTemperature {
  double scale = 0;
  int64_t floor = 8192;
  int64_t offset = 1;
  int64_t log_length = 0;
  bool log_below = false;
  bool acts() const { return scale != 0 || log_length != 0; }
  /// spec::Config::not_recorded_reason of a mixer with it.
  std::string not_recorded_reason() const {
    return acts() ? "its temperature is computed from positions on the host" : "";
  }
  /// The factor on the query at `position` of its document.
  double factor(int64_t position) const;
  /// Throws Error(spec) where a number is given and nothing reads it.
  void check(const spec::Scope& scope) const;
  static constexpr auto fields() {
    using C = QueryTemperature;
    return std::tuple{
        spec::field("scale", &C::scale, "growth; 0 = none", {.min = 0}),
        spec::field("floor", &C::floor, "positions of one step", {.min = 1}),
        spec::field("offset", &C::offset, "added to positions, which begin at 0", {.min = 0}),
        spec::field("log_length", &C::log_length,
                    "n, usually the length of training, in a further factor ln(i + offset) / ln n; "
                    "0 = none",
                    {.min = 0}),
        spec::field("log_below", &C::log_below,
                    "whether that factor also shrinks the queries before n")};
  }
};

}  // namespace tessera::nn
