// A saved session: the sequences of some rows and their state, in one file. A resumed session
// generates the same tokens as an uninterrupted run, bit for bit, greedy or sampled, because a
// choice depends on logits, seed and position only, and the file holds all three.
//
// The file is safetensors: the state's tensors (model/state.h), "tokens.ROW", "source.ROW" for an
// encoder-decoder, "last.ROW" (hidden state of the last token fed, if all are fed), and in the
// metadata the model's fingerprint, the seed and a checksum of everything. A model without a state
// saves its tokens only and computes them again.
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
  model::State state;          // of these rows; empty without rows; may hold fewer tokens
  std::vector<Tensor> last;    // [D] per row, hidden state of the last token fed; may be undefined
                               // while tokens are left to feed
  uint64_t seed = 0;           // of the random choices
  int64_t virtual_tokens = 0;  // of the model, at the beginning of each row of the state
};

/// Identifies what a state depends on: the spec, the weights (names, shapes, types, and 64 elements
/// of each) and the tokenizer's vocabulary.
std::string fingerprint(const model::Model& model, const text::Tokenizer* tokenizer);

/// Writes to a temporary file and renames it, so the file is always the complete old or new
/// session. Throws Error(input) for a state that a cancelled call left half advanced,
/// Error(resource) if the disk is full.
void save_session(const std::filesystem::path& path,
                  const Session& session,
                  const std::string& fingerprint);

/// Checksum in the metadata over all other contents.
std::string session_checksum(const std::vector<format::TensorView>& views,
                             const format::StringMap& metadata);

/// Throws Error(file) for a damaged file, one of another model or tokenizer, or one that is no
/// session. The state gets room for `max_pending` tokens and the storage types of `kv`, which must
/// match the saved ones.
Session load_session(const std::filesystem::path& path,
                     const model::Model& model,
                     const std::string& fingerprint,
                     int64_t max_pending = 0,
                     const spec::KvOptions& kv = {});

}  // namespace tessera::infer
