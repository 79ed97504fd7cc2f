#include "tessera/nn/mixer/convolution/engram.h"

#include <algorithm>
#include <numeric>

#include "tessera/nn/mixer/causal.h"
#include "tessera/nn/mixer/convolution/causal_conv_decl.h"
#include "tessera/nn/norm/stream_norm_decl.h"

namespace tessera::nn {
namespace {

constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;

/// Steele, Lea, Flood 2014: Fast Splittable Pseudorandom Number Generators.
uint64_t splitmix64(uint64_t x) {
  x += kGamma;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

bool is_prime(int64_t n) {
  if (n < 4) return n > 1;
  if (n % 2 == 0) return false;
  for (int64_t d = 3; d * d <= n; d += 2)
    if (n % d == 0) return false;
  return true;
}

}  // namespace

void NgramHash::rows(std::span<const int64_t> ids, std::span<int64_t> out) const {
  const size_t heads = sizes.size() / (factors.size() - 1);
  uint64_t mix = static_cast<uint64_t>(ids[0]) * static_cast<uint64_t>(factors[0]);
  int64_t offset = 0;
  size_t head = 0;
  for (size_t m = 1; m < factors.size(); ++m) {
    mix ^= static_cast<uint64_t>(ids[m]) * static_cast<uint64_t>(factors[m]);
    for (size_t j = 0; j < heads; ++j, ++head) {
      // as a signed number, whose remainder is not negative
      const int64_t left = static_cast<int64_t>(mix) % sizes[head];
      out[head] = offset + (left < 0 ? left + sizes[head] : left);
      offset += sizes[head];
    }
  }
}

int64_t NgramHash::total() const {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

NgramHash EngramConfig::hash(int64_t vocab) const {
  NgramHash hash;
  const uint64_t half = std::max<uint64_t>(
      1, static_cast<uint64_t>(INT64_MAX) / static_cast<uint64_t>(std::max<int64_t>(1, vocab)) / 2);
  const uint64_t start = static_cast<uint64_t>(seed) + 10007 * static_cast<uint64_t>(index);
  for (int64_t m = 0; m < ngram; ++m)
    hash.factors.push_back(static_cast<int64_t>(
        2 * (splitmix64(start + kGamma * static_cast<uint64_t>(m + 1)) % half) + 1));
  int64_t prime = rows - 1;
  for (int64_t n = 0; n < all_heads() * (index + 1); ++n) {
    do ++prime;
    while (!is_prime(prime));
    if (n >= all_heads() * index) hash.sizes.push_back(prime);
  }
  return hash;
}

void EngramConfig::complete(const spec::Scope& scope) {
  if (width == 0) width = scope.d_model;
  if (rows == 0) rows = std::max<int64_t>(1, scope.vocab);
  if (dilation == 0) dilation = ngram;
  const bool fits = all_heads() * (index + 1) <= kMostHeads;
  if (table_rows == 0 && fits) table_rows = hash(scope.vocab).total();
}

void EngramConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "engram");
  if (all_heads() * (index + 1) > kMostHeads)
    fail(ErrorKind::spec, scope.path,
         "ngram = {}, heads = {}, index = {}; expected (ngram - 1) heads (index + 1) of at most {}",
         ngram, heads, index, kMostHeads);
  if (width % all_heads() != 0)
    fail(ErrorKind::spec, scope.path,
         "width = {} for {} heads of each of {} n; expected a multiple of {}", width, heads,
         ngram - 1, all_heads());
  if (pad >= std::max<int64_t>(1, scope.vocab))
    fail(ErrorKind::spec, scope.path, "pad = {} of a vocabulary of {}", pad, scope.vocab);
  if (const int64_t least = hash(scope.vocab).total(); table_rows < least)
    fail(ErrorKind::spec, scope.path,
         "table_rows = {}, and the heads have {} rows; expected at least as many", table_rows,
         least);
}

void EngramConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const int64_t s = streams(scope), d = scope.d_model;
  spec::ParamDecl table{"table.weight",
                        {table_rows, width / all_heads()},
                        spec::Init::table(),
                        spec::ParamKind::embedding,
                        {spec::Role::vocabulary, spec::Role::in}};
  table.share = static_cast<double>(all_heads()) / static_cast<double>(table_rows);
  list.add(std::move(table));
  list.linear("key", s * d, width, bias);
  list.linear("value", d, width, bias, spec::Init::content());
  for (const char* name : {"key_norm", "query_norm", "conv_norm"})
    declare_stream_norm(list, name, s, d, norm_weight);
  // initially the output is that of the token alone
  declare_conv(list, "conv", {s * d, d_conv}, spec::Init::constant(0), nullptr);
}

std::vector<spec::StateDecl> EngramConfig::state(const spec::Scope& scope) const {
  if (past() == 0) return {};
  return {{.name = "conv",
           .kind = spec::StateDecl::Kind::per_token,
           .shape = {streams(scope) * scope.d_model},
           .keep = past()}};
}

double EngramConfig::extra_flops(const spec::Scope& scope, int64_t) const {
  return static_cast<double>(streams(scope) * scope.d_model) *
         (5.0 + 2.0 * static_cast<double>(d_conv));
}

}  // namespace tessera::nn
