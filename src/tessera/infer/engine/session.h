// A text that goes on another day: what rows have read and said, and the state that it left, in one
// file. Going on gives the tokens that a run without the break would have given, bit for bit,
// greedy or sampled: a choice follows from logits, seed and the number of tokens before it, and all
// three are kept.
//
// The file is safetensors: the state's tensors (model/state.h), "tokens.ROW", "source.ROW" beside
// an encoder, "last.ROW" (the hidden state of a token that has been fed while nothing came after
// it), and in the metadata the fingerprint of the model, the seed and a checksum of all of this. A
// model without a state keeps its tokens alone and computes them again.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/format/tensor_view.h"
#include "tessera/infer/engine/sequence.h"
#include "tessera/model/model.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::infer {

struct Session {
  std::vector<Sequence> rows;
  model::State state;        // of these rows, none without rows; it may be behind their tokens
  std::vector<Tensor> last;  // [D], hidden state of the last token of each row that was fed; may be
                             // undefined where tokens are left to feed
  uint64_t seed = 0;         // of the random choices so far
  int64_t virtual_tokens = 0;  // of the model, which rows of the state begin with
};

/// What a state depends on: the spec, the weights (names, shapes, types, and 64 places of each) and
/// the tokens of the tokenizer.
std::string fingerprint(const model::Model& model, const text::Tokenizer* tokenizer);

/// Written beside and renamed: the file is the old session or the new one. Throws Error(input) for
/// a state that a cancelled call has left half advanced, Error(resource) when the disk is full.
void save_session(const std::filesystem::path& path,
                  const Session& session,
                  const std::string& fingerprint);

/// What the metadata of a session say of everything else that the file says.
std::string session_checksum(const std::vector<format::TensorView>& views,
                             const format::StringMap& metadata);

/// Throws Error(file) for what is damaged, of another model or tokenizer, or no session. The state
/// has room for `max_pending` tokens and keeps keys and values as `kv` says, as the saved one did.
Session load_session(const std::filesystem::path& path,
                     const model::Model& model,
                     const std::string& fingerprint,
                     int64_t max_pending = 0,
                     const spec::KvOptions& kv = {});

}  // namespace tessera::infer
