// Objectives that make a question out of a text alone: some of it, or a spoilt copy, is given, and
// the rest, or the text as it was, is asked for. An encoder reads what is given and the decoder
// beside it answers; a decoder alone reads it as its prefix. Pure functions of a text and a key.
// Torch-free.
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

/// Neither is empty.
struct DenoisingExample {
  std::vector<int64_t> given, asked;
};

/// Where tokens go that a text becomes, and how many of them there is room for.
struct NoiseRoom {
  bool encoder = false;  // what is given goes to an encoder of its own
  int64_t length = 0;    // tokens that a stack reads at most

  bool fits(int64_t given, int64_t asked) const {
    // the last token that is asked for is not read; an encoder's decoder begins with its start
    return encoder ? given <= length && asked <= length : given + asked - 1 <= length;
  }
};

/// Part of a document, without what separates documents.
struct NoiseText {
  std::span<const int64_t> ids;
  bool ends = false;  // the document does
};

/// A document whole, with what separates it from the next, of which any tokens can be read.
struct NoiseDocument {
  int64_t tokens = 0;
  std::function<int64_t(int64_t index)> at;
};

class Noise {
 public:
  virtual ~Noise() = default;
  /// Tokens of a text that are read at a time: the most that fit.
  virtual int64_t raw_length() const = 0;
  /// Nothing where the text is too short to ask anything.
  virtual std::optional<DenoisingExample> apply(const NoiseText& text,
                                                const RandomKey& key) const = 0;

  /// Whether documents are told anew as wholes, by keys of their own, and windows show parts of
  /// what they become; then apply() is not called but this: tokens from .. to - 1, at least 2 of
  /// them, of the document that comes out, which has as many as went in.
  virtual bool tells_documents() const { return false; }
  virtual std::vector<int64_t> told(const NoiseDocument& document,
                                    int64_t from,
                                    int64_t to,
                                    const RandomKey& key) const;
};

/// The most tokens of a text, 2 to `most`, for which fits(n), which but for rounding holds up to a
/// border; Error(spec) where there are none in train.length = `length`.
int64_t longest_text(int64_t most, int64_t length, const std::function<bool(int64_t)>& fits);

/// What documents become: rows of a batch that an encoder_decoder whose decoder begins with `start`
/// reads, or a decoder (no start). What is too long loses the end of what is asked but for one
/// token, then the end of what is given.
struct NoisedPiece {
  int64_t row = 0;
  DenoisingExample text;
  int64_t kind = -1;  // PackedBatch::kinds; -1 = there is one alone
};
PackedBatch pack_noised(std::vector<NoisedPiece> pieces,
                        std::optional<int64_t> start,
                        int64_t length);

/// Prefix language model: what follows a place in 1 .. n - 1, each as likely, from what precedes.
/// Raffel et al. 2020, arXiv:1910.10683, sec. 3.2.
class PrefixCut final : public Noise {
 public:
  /// `mode`: a token before what is given; `eos`: behind the end of a document.
  PrefixCut(NoiseRoom room, std::optional<int64_t> mode, std::optional<int64_t> eos)
      : room_(room), mode_(mode), eos_(eos) {}
  int64_t raw_length() const override;
  std::optional<DenoisingExample> apply(const NoiseText& text, const RandomKey& key) const override;

 private:
  NoiseRoom room_;
  std::optional<int64_t> mode_, eos_;
};

/// Every token from those before it: a text as it is, among others that are not.
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
