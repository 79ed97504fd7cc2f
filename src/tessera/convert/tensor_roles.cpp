#include "tessera/convert/tensor_roles.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <set>

namespace tessera::convert {
namespace {

std::vector<std::string> parts_between(std::string_view text, std::string_view at) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : text) {
    if (at.find(c) == std::string_view::npos) {
      part += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    if (!part.empty()) parts.push_back(std::move(part));
    part.clear();
  }
  if (!part.empty()) parts.push_back(std::move(part));
  return parts;
}

/// weight or bias, in either library's spelling.
std::string kind_of_last(std::string_view name) {
  const size_t dot = name.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? name : name.substr(dot + 1);
  if (last == "gamma") return "weight";
  if (last == "beta") return "bias";
  return std::string(last);
}

/// One role: the spellings of its own module, and words of which one must stand somewhere (none =
/// any).
struct Role {
  const char* name;
  std::vector<const char*> modules;
  std::vector<const char*> context = {};
};

/// The first that fits is taken.
const std::vector<Role>& roles() {
  static const std::vector<const char*> in_attention = {
      "attn", "attention", "self_attn", "mixer", "self_attention", "temporal_block"};
  static const std::vector<Role> list = {
      {"q_norm", {"q_norm", "q_layernorm", "query_norm", "q_ln", "norm_q", "query_layernorm"}},
      {"k_norm", {"k_norm", "k_layernorm", "key_norm", "k_ln", "norm_k", "key_layernorm"}},
      {"qkv", {"qkv", "qkv_proj", "wqkv", "query_key_value", "c_attn", "in_proj_qkv", "att_proj"}},
      {"gate_up", {"gate_up_proj", "gate_up", "w12", "gate_and_up_proj", "ff_proj"}},
      {"q", {"q_proj", "query", "q_lin", "q", "wq", "to_q", "query_proj", "linear_q", "q_linear"}},
      {"k", {"k_proj", "key", "k_lin", "k", "wk", "to_k", "key_proj", "linear_k", "k_linear"}},
      {"v", {"v_proj", "value", "v_lin", "v", "wv", "to_v", "value_proj", "linear_v", "v_linear"}},
      {"router", {"router", "gate"}, {"moe", "block_sparse_moe", "router"}},
      {"embed_norm", {"layernorm", "layer_norm", "norm", "ln"}, {"embeddings", "embedding"}},
      {"norm1",
       {"input_layernorm", "ln_1", "ln1", "attention_norm", "attn_norm", "norm1", "norm_1",
        "sa_layer_norm", "self_attn_layer_norm", "pre_attention_layernorm", "attn_ln",
        "temporal_pre_norm", "operator_norm", "attention_layernorm", "layer_norm_before",
        "layernorm_before"}},
      {"norm2",
       {"post_attention_layernorm", "ln_2", "ln2", "ffn_norm", "norm2", "norm_2",
        "output_layer_norm", "mlp_norm", "pre_ff_layernorm", "channel_pre_norm",
        "pre_mlp_layernorm", "ff_norm", "mlp_ln", "layernorm_after", "layer_norm_after",
        "mlp_layernorm"}},
      {"norm1", {"layernorm", "layer_norm"}, {"attention", "attn"}},
      {"norm2", {"layernorm", "layer_norm"}, {"output", "ffn", "mlp"}},
      {"o",
       {"o_proj", "out_proj", "wo", "out_lin", "o", "to_out", "dense", "c_proj", "proj", "out",
        "output", "final_linear", "output_proj", "attn_out", "result"},
       in_attention},
      {"gate", {"gate_proj", "gate", "w1", "linear_v", "wi_0", "fc1_g"}},
      {"up",
       {"up_proj", "w3", "fc1", "fc_in", "c_fc", "dense_h_to_4h", "lin1", "up", "wi_1", "wi",
        "linear_1", "ffn1"}},
      {"up", {"dense"}, {"intermediate"}},
      {"down",
       {"down_proj", "w2", "fc2", "fc_out", "dense_4h_to_h", "lin2", "down", "linear_2", "ff_out",
        "ffn2", "c_proj"}},
      {"down", {"dense"}, {"output"}},
      {"position",
       {"wpe", "position_embeddings", "embed_positions", "position_embedding", "pos_embed",
        "positions_embed"}},
      {"type", {"token_type_embeddings", "segment_embeddings", "token_type_embedding"}},
      {"embed",
       {"embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embed_in", "embedding",
        "word_embedding", "token_embeddings", "tokens_embed", "embeddings", "words", "shared",
        "embed", "token_embedding"}},
      {"head", {"lm_head", "embed_out", "output_layer", "unembed", "out_head"}},
      {"final_norm",
       {"ln_f", "final_layernorm", "final_norm", "norm_f", "norm", "ln_out", "final_layer_norm",
        "last_norm"}},
      {"norm2", {"final_layer_norm"}},
  };
  return list;
}

bool one_of(const std::vector<const char*>& list, const std::string& word) {
  return std::any_of(list.begin(), list.end(), [&](const char* known) { return word == known; });
}

}  // namespace

NumberedName numbered(std::string_view name) {
  NumberedName out;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const bool number =
        !part.empty() && part.size() <= 9 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (number) out.numbers.push_back(std::stoll(std::string(part)));
    out.pattern += number ? "*" : std::string(part);
    if (end < name.size()) out.pattern += '.';
    begin = end + 1;
  }
  return out;
}

std::string role_of(std::string_view name) {
  std::vector<std::string> parts = parts_between(name, ".");
  if (!parts.empty() && (parts.back() == "weight" || parts.back() == "bias" ||
                         parts.back() == "gamma" || parts.back() == "beta"))
    parts.pop_back();
  if (parts.empty()) return "";
  const std::string module = parts.back();
  const bool numbered = std::find(parts.begin(), parts.end(), "*") != parts.end();
  std::set<std::string> context(parts.begin(), parts.end() - 1);
  for (const std::string& part : parts)
    for (std::string& word : parts_between(part, "_"))
      if (&part != &parts.back()) context.insert(std::move(word));
  for (const Role& role : roles()) {
    if (!one_of(role.modules, module)) continue;
    if (!role.context.empty() &&
        std::none_of(role.context.begin(), role.context.end(),
                     [&](const char* word) { return context.contains(word); }))
      continue;
    const std::string_view found = role.name;
    // names without a layer and with one mean different norms by the same word
    if ((found == "final_norm" || found == "head" || found == "embed") && numbered) continue;
    // an expert has a gate of its own
    if (found == "router" && context.contains("experts")) continue;
    return role.name;
  }
  return "";
}

double likeness(std::string_view a, std::string_view b) {
  if (kind_of_last(a) != kind_of_last(b)) {
    const auto bare = [](const std::string& kind) { return kind != "weight" && kind != "bias"; };
    // a parameter of a module's own against a module's weight
    if (!(bare(kind_of_last(a)) && kind_of_last(b) == "weight") &&
        !(bare(kind_of_last(b)) && kind_of_last(a) == "weight"))
      return 0;
  }
  const std::string role_a = role_of(a), role_b = role_of(b);
  if (!role_a.empty() && !role_b.empty() && role_a != role_b) return 0;
  const auto words = [](std::string_view name) {
    std::set<std::string> words;
    for (const std::string& word : parts_between(name, "._*"))
      if (word == "layernorm")
        words.insert({"layer", "norm"});
      else
        words.insert(word);
    return words;
  };
  const std::set<std::string> x = words(a), y = words(b);
  size_t common = 0;
  for (const std::string& word : x) common += y.contains(word) ? 1 : 0;
  const double shared = static_cast<double>(common) /
                        static_cast<double>(std::max<size_t>(1, x.size() + y.size() - common));
  return role_a.empty() || role_b.empty() ? 0.5 * shared : 0.6 + 0.4 * shared;
}

}  // namespace tessera::convert
