// What tests of CUDA kernels share: arrays of numbers, and the chunks of documents.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/cuda/emulation_testing.h"

namespace tessera::cuda {

/// Numbers between -1 and 1 that repeat at no short distance.
inline std::vector<float> numbers(int64_t n, double step, double phase = 0) {
  std::vector<float> out(static_cast<size_t>(n));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(std::sin(step * static_cast<double>(i) + phase));
  return out;
}

/// A tensor to write on: NaN, so that what is not written shows.
inline std::vector<float> unwritten(int64_t n) {
  return std::vector<float>(static_cast<size_t>(n), std::nanf(""));
}

/// |got - want| at most `tolerance` times the largest |want|, and at least 1.
inline void expect_close(const std::vector<float>& got,
                         const std::vector<double>& want,
                         double tolerance,
                         const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double most = 1;
  for (const double w : want) most = std::max(most, std::abs(w));
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_LE(std::abs(got[i] - want[i]), tolerance * most)
        << what << "[" << i << "] is " << got[i] << ", expected " << want[i];
}

/// Documents of these lengths in chunks of `chunk` tokens at most.
struct Chunks {
  std::vector<int64_t> starts;     // of chunks, and the number of tokens
  std::vector<int64_t> documents;  // the first chunk of each, and their number
  Chunks(const std::vector<int64_t>& lengths, int64_t chunk) {
    int64_t token = 0;
    for (const int64_t length : lengths) {
      documents.push_back(static_cast<int64_t>(starts.size()));
      for (int64_t t = 0; t < length; t += chunk) starts.push_back(token + t);
      token += length;
    }
    documents.push_back(static_cast<int64_t>(starts.size()));
    starts.push_back(token);
  }
  int64_t count() const { return documents.back(); }
  int64_t tokens() const { return starts.back(); }
};

}  // namespace tessera::cuda
