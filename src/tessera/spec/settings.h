// Settings of the library's calls: JSON objects whose keys are taken one by one. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/spec/json.h"

namespace tessera::spec {

/// Every member is asked for by the name of its key; done() refuses keys that were not read.
/// Errors are Error(usage) "[where] key: found; expected".
class Settings {
 public:
  /// Throws Error(input) for what is no JSON object; "" is {}.
  Settings(std::string_view text, std::string where);

  std::optional<bool> flag(const char* key);
  std::optional<std::string> text(const char* key);
  /// A whole number of at least `least`.
  std::optional<int64_t> whole(const char* key, int64_t least);
  /// Between `least`, itself excluded where `above`, and `most`.
  std::optional<double> number(
      const char* key, double least, double most, const char* expected, bool above = false);
  /// A string, or a list of strings.
  std::vector<std::string> texts(const char* key);
  /// As it is; null where it is absent.
  Json any(const char* key);
  /// Among the names; nothing where the key is absent.
  std::optional<std::string> one_of(const char* key, const std::vector<std::string>& names);

  const std::string& where() const { return where_; }
  /// Throws Error(usage) that names a key which is none, and the nearest one that is.
  void done() const;

 private:
  const Json* find(const char* key);

  Json json_;
  std::string where_;
  std::vector<std::string> known_;
};

}  // namespace tessera::spec
