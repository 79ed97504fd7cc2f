// Self-supervised objectives on text: the input is a part or a corrupted copy, the target is the
// rest or the original. The input goes to the encoder and the target to the decoder; a decoder-only
// model gets the input as its prefix. Pure functions of a text and a key. Torch-free.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/rng.h"
#include "tessera/train/data/packing.h"

namespace tessera::train {

/// An input and its target; neither is empty.
struct DenoisingExample {
  std::vector<int64_t> given, asked;
};

/// The consumer of examples, and its capacity.
struct NoiseRoom {
  bool encoder = false;  // the input goes to an encoder
  int64_t length = 0;    // max. tokens of a stack

  bool fits(int64_t given, int64_t asked) const {
    // the last target token is no input; a decoder after an encoder begins with its start token
    return encoder ? given <= length && asked <= length : given + asked - 1 <= length;
  }
};

/// Part of a document, without separator.
struct NoiseText {
  std::span<const int64_t> ids;
  bool ends = false;  // it ends the document
};

/// A whole document with its separator, with random access to its tokens.
struct NoiseDocument {
  int64_t tokens = 0;
  std::function<int64_t(int64_t index)> at;
};

class Noise {
 public:
  virtual ~Noise() = default;
  /// Number of text tokens per example: the most that fit.
  virtual int64_t raw_length() const = 0;
  /// nullopt if the text is too short for a target.
  virtual std::optional<DenoisingExample> apply(const NoiseText& text,
                                                const RandomKey& key) const = 0;

  /// True if whole documents are transformed, with keys of their own, and windows show sections of
  /// the result. Then apply() is not called but this: tokens from .. to - 1 (at least 2) of the
  /// transformed document, which has as many tokens as the original.
  virtual bool transforms_documents() const { return false; }
  virtual std::vector<int64_t> transformed(const NoiseDocument& document,
                                           int64_t from,
                                           int64_t to,
                                           const RandomKey& key) const;
};

/// The largest text length in 2 .. `most` for which fits(n) holds (monotonic except for rounding);
/// Error(spec) if there is none with train.length = `length`.
int64_t longest_text(int64_t most, int64_t length, const std::function<bool(int64_t)>& fits);

/// Packs examples as rows of a batch for an encoder-decoder whose decoder begins with `start`, or
/// for a decoder (no start). An example that is too long loses the end of its target except one
/// token, then the end of its input.
struct NoisedPiece {
  int64_t row = 0;
  DenoisingExample text;
  int64_t kind = -1;  // PackedBatch::kinds; -1 = not a mixture
};
PackedBatch pack_noised(std::vector<NoisedPiece> pieces,
                        std::optional<int64_t> start,
                        int64_t length);

/// Prefix language model: predicts a text after a uniform position in 1 .. n - 1 from the text
/// before it. Raffel et al. 2020, arXiv:1910.10683, sec. 3.2.
class PrefixCut final : public Noise {
 public:
  /// `mode`: a token before the input; `eos`: after the end of a document.
  PrefixCut(NoiseRoom room, std::optional<int64_t> mode, std::optional<int64_t> eos)
      : room_(room), mode_(mode), eos_(eos) {}
  int64_t raw_length() const override;
  std::optional<DenoisingExample> apply(const NoiseText& text, const RandomKey& key) const override;

 private:
  NoiseRoom room_;
  std::optional<int64_t> mode_, eos_;
};

/// Next-token prediction on unchanged text, as a member of a mixture.
class NextToken final : public Noise {
 public:
  NextToken(NoiseRoom room, std::optional<int64_t> eos) : room_(room), eos_(eos) {}
  int64_t raw_length() const override { return room_.length; }
  std::optional<DenoisingExample> apply(const NoiseText& text, const RandomKey& key) const override;

 private:
  NoiseRoom room_;
  std::optional<int64_t> eos_;
};

}  // namespace tessera::train
