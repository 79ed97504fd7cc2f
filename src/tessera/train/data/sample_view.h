// Shows batches for inspection before a run: documents, inputs and targets. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/train/data/packing.h"

namespace tessera::train {

/// Tokens as text: `"Hello w" <extra_id_0> "ld"`; special tokens by name, ids beyond the
/// tokenizer's as <256>. Here and below, without a tokenizer (tasks have none) the ids.
std::string shown(std::span<const int64_t> ids, const text::Tokenizer* tokenizer);

/// One document of a batch: {"row", "reads": {"ids", "tokens", "text"}, "targets", "asks", ...};
/// "encoder_reads" with an encoder, "prefix" with prefix tokens, "label" with a label. `classes`:
/// targets are class numbers, not tokens.
spec::Json view_of(const PackedBatch& batch,
                   size_t piece,
                   const text::Tokenizer* tokenizer,
                   bool classes = false);

/// The same in a few indented lines.
std::vector<std::string> lines_of(const PackedBatch& batch,
                                  size_t piece,
                                  const text::Tokenizer* tokenizer,
                                  bool classes = false);

}  // namespace tessera::train
