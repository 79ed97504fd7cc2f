// What tests of the golden families share.
#pragma once

#include <map>
#include <string>

namespace tessera::convert {

/// Cases "family/case" of what no mechanism computes, with the reason that the error must hold. Any
/// other case must be met.
inline const std::map<std::string, std::string>& refused_cases() {
  static const std::map<std::string, std::string> list = {
      {"bloom/apply_residual_connection_post_layernorm",
       "apply_residual_connection_post_layernorm"},
      {"falcon_h1/mamba_norm_before_gate", "mamba_norm_before_gate"},
      {"mamba2/hidden_act_gelu", "hidden_act"},
      {"roformer/rotary_value", "rotary_value"},
      {"xglm/pad_token_id", "pad_token_id"},
      {"xlnet/bi_data", "bi_data"},
  };
  return list;
}

}  // namespace tessera::convert
