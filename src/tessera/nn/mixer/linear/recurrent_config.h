// What the configs of mixers with a linear recurrence share: heads with a matrix state [K, V] each.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct RecurrentConfig : spec::Config {
  int64_t n_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t chunk = 64;

  /// The fields above; the documentation of the widths has the meaning of 0.
  static constexpr auto head_fields(const char* key_doc, const char* value_doc) {
    using C = RecurrentConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "H", {.min = 1, .required = true}),
        field("key_dim", &C::key_dim, key_doc, {.min = 0}),
        field("value_dim", &C::value_dim, value_doc, {.min = 0}),
        field("chunk", &C::chunk, "tokens per chunk of the chunked form", {.min = 1})};
  }
  int64_t keys() const { return n_heads * key_dim; }
  int64_t values() const { return n_heads * value_dim; }

  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;

 protected:
  /// d_model / n_heads; throws Error(spec) when it is not whole.
  int64_t head_width(const spec::Scope& scope) const;
  /// Throws Error(spec) in an encoder.
  static void require_causal(const spec::Scope& scope, std::string_view name);
};

}  // namespace tessera::nn
