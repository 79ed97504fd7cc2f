// For tests: a Hugging Face Llama in the form in which Meta publishes one.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tessera/convert/tensor_ops.h"
#include "tessera/spec/json.h"

namespace tessera::convert::test_params {

/// "model.layers.0.self_attn.q_proj.weight" is "layers.0.attention.wq.weight" there.
inline std::string meta_name(std::string name) {
  const std::pair<const char*, const char*> words[] = {{"model.embed_tokens", "tok_embeddings"},
                                                       {"model.norm", "norm"},
                                                       {"lm_head", "output"},
                                                       {"model.layers", "layers"},
                                                       {"self_attn.q_proj", "attention.wq"},
                                                       {"self_attn.k_proj", "attention.wk"},
                                                       {"self_attn.v_proj", "attention.wv"},
                                                       {"self_attn.o_proj", "attention.wo"},
                                                       {"mlp.gate_proj", "feed_forward.w1"},
                                                       {"mlp.down_proj", "feed_forward.w2"},
                                                       {"mlp.up_proj", "feed_forward.w3"},
                                                       {"input_layernorm", "attention_norm"},
                                                       {"post_attention_layernorm", "ffn_norm"}};
  for (const auto& [ours, meta] : words)
    if (const size_t at = name.find(ours); at != std::string::npos)
      name.replace(at, std::strlen(ours), meta);
  return name;
}

inline TensorView copy_of(std::string name,
                          DType dtype,
                          Shape shape,
                          std::vector<std::byte> bytes) {
  auto owner = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  return {std::move(name), dtype, std::move(shape), *owner, owner};
}

/// Rows of heads of `width`: row 2 j of a head is row j there, row 2 j + 1 is row j + width / 2, as
/// Meta rotates neighbours and transformers halves.
inline TensorView paired_rows(const TensorView& tensor, int64_t width) {
  const auto row = tensor.data.size() / static_cast<size_t>(tensor.shape[0]);
  std::vector<std::byte> bytes(tensor.data.size());
  for (int64_t r = 0; r < tensor.shape[0]; ++r) {
    const int64_t at = r % width, from = r - at + (at % 2 == 0 ? at / 2 : width / 2 + at / 2);
    std::memcpy(bytes.data() + static_cast<size_t>(r) * row,
                tensor.data.data() + static_cast<size_t>(from) * row, row);
  }
  return copy_of(tensor.name, tensor.dtype, tensor.shape, std::move(bytes));
}

inline std::vector<TensorView> meta_tensors(const std::vector<TensorView>& hf, int64_t head_dim) {
  std::vector<TensorView> out;
  for (const TensorView& tensor : hf) {
    const std::string name = meta_name(tensor.name);
    const bool rotated =
        name.find("attention.wq") != name.npos || name.find("attention.wk") != name.npos;
    out.push_back(rotated ? paired_rows(tensor, head_dim) : tensor);
    out.back().name = name;
  }
  return out;
}

/// Part `rank` of `n`: columns of wo, w2 and the embedding, rows of other matrices, vectors whole.
inline TensorView part_of(const TensorView& tensor, int64_t rank, int64_t n) {
  if (tensor.shape.size() != 2) return tensor;
  bool columns = false;
  for (const char* name : {"tok_embeddings", "attention.wo", "feed_forward.w2"})
    columns = columns || tensor.name.find(name) != std::string::npos;
  Shape shape = tensor.shape;
  shape[columns ? 1 : 0] /= n;
  const auto whole = tensor.data.size() / static_cast<size_t>(tensor.shape[0]);
  std::vector<std::byte> bytes;
  for (int64_t r = 0; r < shape[0]; ++r) {
    const int64_t row = columns ? r : rank * shape[0] + r;
    const size_t length = columns ? whole / static_cast<size_t>(n) : whole;
    const std::byte* from = tensor.data.data() + static_cast<size_t>(row) * whole +
                            (columns ? static_cast<size_t>(rank) * length : 0);
    bytes.insert(bytes.end(), from, from + length);
  }
  return copy_of(tensor.name, tensor.dtype, shape, std::move(bytes));
}

/// params.json of a Hugging Face config, with the further keys of Meta's program.
inline spec::Json params_of(const spec::Json& config) {
  return {{"dim", config.at("hidden_size")},
          {"n_layers", config.at("num_hidden_layers")},
          {"n_heads", config.at("num_attention_heads")},
          {"n_kv_heads", config.at("num_key_value_heads")},
          {"head_dim", config.at("head_dim")},
          {"vocab_size", -1},
          {"multiple_of", 16},
          {"norm_eps", config.at("rms_norm_eps")},
          {"rope_theta", config.at("rope_parameters").at("rope_theta")}};
}

}  // namespace tessera::convert::test_params
