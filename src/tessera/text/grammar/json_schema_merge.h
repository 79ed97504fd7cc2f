// Expands combined schemas (references, allOf, anyOf, oneOf) to a list of simple schemas: a value
// is accepted if one of them accepts it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/spec/json.h"

namespace tessera::text {

struct Alternative {
  spec::Json schema;
  std::string path;  // JSON pointer, for messages
};

class SchemaMerger {
 public:
  SchemaMerger(const spec::Json& root, const std::string& where) : root_(root), where_(where) {}

  /// The pointer of a schema that is only a reference.
  std::optional<std::string> plain_reference(const spec::Json& schema,
                                             const std::string& path) const;
  const spec::Json& resolve(const std::string& reference, const std::string& path) const;
  /// Each is a boolean, a plain reference, or has no combinations; const becomes enum, keywords of
  /// older drafts those of 2020-12. Throws Error(input) for schemas without such a form.
  std::vector<Alternative> alternatives(const spec::Json& schema,
                                        const std::string& path,
                                        bool strict);
  /// True if it has keywords other than the type.
  bool constrains(const spec::Json& schema) const;
  /// "integer" for integral numbers.
  std::string type_of(const spec::Json& value) const;
  const spec::Json& root() const { return root_; }
  /// Paths of ignored keywords, if ignoring is allowed.
  std::vector<std::string> take_ignored() { return std::exchange(ignored_, {}); }

 private:
  using List = std::vector<Alternative>;
  List expanded(const spec::Json& schema, const std::string& path, bool strict, int depth);
  List crossed(const List& a, const List& b, const std::string& path, int depth);
  spec::Json merged(const spec::Json& a, const spec::Json& b, const std::string& path, int depth);
  bool apart(const spec::Json& a, const spec::Json& b, int depth) const;
  spec::Json dressed(spec::Json schema, const std::string& path) const;

  const spec::Json& root_;
  const std::string& where_;
  std::vector<std::string> ignored_;
};

}  // namespace tessera::text
