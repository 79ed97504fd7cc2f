// What a model thinks before it answers, apart from the answer, as the text comes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::serve {

/// <think> at the beginning of the text, or opened by the prompt, up to </think>. However the text
/// is cut, what is handed out comes to the same.
class ReasoningSplitter {
 public:
  /// `opened`: the prompt has begun the thoughts. `splits` false: all is answer, tags included.
  explicit ReasoningSplitter(bool opened, bool splits = true);

  struct Piece {
    bool reasoning = false;
    std::string text;
  };
  /// What is certain after this text; `last`: all of it.
  std::vector<Piece> push(std::string_view text, bool last);

 private:
  enum class Place { before, within, behind };
  Place place_;
  bool fresh_ = true;  // spaces at the start of thoughts and answer are the template's
  std::string held_;
};

}  // namespace tessera::serve
