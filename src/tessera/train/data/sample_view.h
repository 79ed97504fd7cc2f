// What a batch holds, for whoever looks at data before a run: documents, what is read and what is
// asked. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/train/data/packing.h"

namespace tessera::train {

/// Tokens as text: `"Hello w" <extra_id_0> "ld"`; special tokens by their names, ids behind those
/// of the tokenizer as <256>. Here and below, without a tokenizer (tasks have none) ids as such.
std::string shown(std::span<const int64_t> ids, const text::Tokenizer* tokenizer);

/// One document of a batch: {"row", "reads": {"ids", "tokens", "text"}, "targets", "asks", ...};
/// "encoder_reads" where an encoder reads something beside it, "prefix" where tokens were given,
/// "label" where the document has one. `classes`: targets are numbers of classes, not tokens.
spec::Json view_of(const PackedBatch& batch,
                   size_t piece,
                   const text::Tokenizer* tokenizer,
                   bool classes = false);

/// The same in a few lines, each indented.
std::vector<std::string> lines_of(const PackedBatch& batch,
                                  size_t piece,
                                  const text::Tokenizer* tokenizer,
                                  bool classes = false);

}  // namespace tessera::train
