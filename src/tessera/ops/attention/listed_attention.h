// Attention to keys that a list names, and its dense twin: a bias of 0, ln(count) or -inf per pair.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "tessera/kernels/attention/listed_attention.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

using kernels::ListedKey;

/// Keys and values in one piece, or in parts that follow one another (the pages of a state).
struct KeyMemory {
  KeyMemory(Tensor k_SGK, Tensor v_SGV) : k{std::move(k_SGK)}, v{std::move(v_SGV)} {}
  KeyMemory(std::vector<Tensor> k_parts, std::vector<Tensor> v_parts)
      : k(std::move(k_parts)), v(std::move(v_parts)) {}
  std::vector<Tensor> k, v;
};

/// The keys of every query, in the order in which they are added up.
struct KeyLists {
  std::vector<ListedKey> keys;
  std::vector<int64_t> ends;  // per query, or per query and kv head, or per query and head
  int64_t per_query = 1;

  void add(int64_t source, int64_t index, double bias = 0) {
    keys.push_back({static_cast<int32_t>(source), static_cast<int32_t>(index), bias});
  }
  void end_list() { ends.push_back(static_cast<int64_t>(keys.size())); }
  /// The lists of further queries.
  void append(const KeyLists& more);
  /// One number [entries] more for every entry.
  void add_biases(const Tensor& numbers);
};

/// Terms added to the entries' own numbers, with gradients to their sources. Lists by
/// query and head.
struct ListBias {
  /// [entries] of the lists of queries first .. of a call, q_NHK; `memories` and `inputs` are the
  /// call's, or copies that gradients shall reach.
  std::function<Tensor(const KeyLists& lists,
                       int64_t first,
                       const Tensor& q_NHK,
                       const std::vector<KeyMemory>& memories,
                       const std::vector<Tensor>& inputs)>
      of = nullptr;
  std::vector<Tensor> inputs = {};

  explicit operator bool() const { return of != nullptr; }
};

struct Attended {
  Tensor out, lse;
};

/// The batch-invariant kernel: q_THK -> [T, H, V] and [T, H].
Attended listed_attention(const Tensor& q_THK,
                          const std::vector<KeyMemory>& memories,
                          const KeyLists& lists,
                          double scale);

/// What queries [first, first + n) of a call read.
using ListsOf = std::function<KeyLists(int64_t first, int64_t n)>;

/// The same for any type and device, with gradients, `block` queries at a time: lists exist for one
/// block, and are asked for again in the backward pass, as what they gain. Memory linear in queries
/// and keys. float32 on a CPU by kernels, else by torch operations on gathered keys. -> [T, H, V].
Tensor listed_attention(const Tensor& q_THK,
                        const std::vector<KeyMemory>& memories,
                        const ListsOf& lists,
                        double scale,
                        int64_t block,
                        const ListBias& bias = {});

/// With gradients: q_BHTK, k_BGSK, v_BGSV, bias broadcast to [B, H, T, S] -> [B, H, T, V] and
/// [B, H, T]. Softmax in float32 or double; a row without keys gives 0.
Attended biased_attention(const Tensor& q_BHTK,
                          const Tensor& k_BGSK,
                          const Tensor& v_BGSV,
                          const Tensor& bias,
                          double scale);

}  // namespace tessera::ops
