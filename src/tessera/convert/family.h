// A family: how one kind of foreign checkpoint, in each of its dialects, maps to our terms.
// Format of the files: docs/guide/families.md.
//
//   config  --read-->   values  --spec-->    our spec       (import)
//   config  <--write--  values  <--values--  our spec       (export; checked by reading it back)
//   tensors: one list of rules for both directions
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>

#include "tessera/base/error_type.h"
#include "tessera/convert/tensor_steps.h"

namespace tessera::convert {

using NamedTemplates = std::vector<std::pair<std::string, std::shared_ptr<const Template>>>;

/// Names in a rule: one tensor, or one for every element of a list.
struct RuleName {
  std::optional<Loop> loop;
  std::vector<NamePattern> spellings;  // the one that is written first

  /// Calls body with every tensor's locals.
  void each(Environment& env,
            const Local* locals,
            const std::function<void(const Local* locals)>& body) const;
};

/// Names and steps of a tensor in one dialect.
struct ForeignSide {
  std::vector<RuleName> names;
  TensorSteps steps;
};

/// A rule or a group of rules.
struct TensorRule {
  enum class Kind {
    group,    // of `rules`
    convert,  // foreign -> ours
    keep,     // not part of our model: kept under a name for export, may be absent
    same_as,  // another name of our parameter; may be absent, must be equal
    copy_of,  // what a reader asks for and does not use: a copy of our parameter, only written
    values,   // numbers that the spec gives, and reading has asked for by tensor_values()
  };
  Kind kind = Kind::group;
  bool inherited = false;  // of the base: a rule of the family's own replaces it
  std::optional<Loop> loop;
  std::optional<Expr> condition;
  std::optional<Expr> values;
  std::vector<TensorRule> rules;
  std::vector<RuleName> ours;                             // of one spelling
  std::map<std::string, ForeignSide, std::less<>> sides;  // by dialect
};

/// Names of a family's files and of its base for the same things: patterns in which "*" is one
/// part of a name between dots, and at the end for the rest; the base's with the file's. Of several
/// that match the one with the most letters decides.
class Renames {
 public:
  /// Throws Error(spec) unless both sides of each have the same number of stars.
  static Renames compile(const Json& json, const std::string& where);
  bool empty() const { return list_.empty(); }
  std::string to_file(std::string_view name) const;
  std::string to_base(std::string_view name) const;

 private:
  std::vector<std::pair<std::string, std::string>> list_;
};

struct Dialect {
  std::vector<std::string>
      types;                 // values of model_type or general.architecture that this family reads
  std::optional<Expr> when;  // of the files of these types, those of which this holds
  std::string lift;          // a key whose members stand above the others (a model inside a model)
  NamedTemplates read;       // value <- config
  std::shared_ptr<const Template> write;   // config <- values; null: read only
  std::string read_only;                   // why it cannot be written
  std::shared_ptr<const Template> remark;  // what to say when it was written, or null
  NamedTemplates written;  // values that only this dialect's writing needs (a prefix)
  NamedTemplates fixed;    // values that take another form in this dialect (a row order)
  std::map<std::string, Json> expect;                     // key -> the list of values it may have
  std::map<std::string, std::string> ignored_keys;        // glob -> why they do not matter here
  std::map<std::string, std::string> ignored_tensors;     // glob -> why
  std::map<std::string, std::string> ignored_heads;       // glob -> what the head computes
  std::set<std::string> claims;                           // every key that is read
  Renames names;                                          // of tensors
  std::vector<std::pair<std::string, std::string>> keys;  // of the config: the base's, the file's
  bool inherited = false;  // of the base as a whole: written for, and read back by, its readers

  /// Whether the family takes no notice of a key: a name of ignored_keys, or a glob there.
  bool ignores_key(std::string_view path) const;
  /// The file's name of a key of the base, or of a member of it.
  std::string file_key(std::string_view path) const;
  /// The config with the base's keys instead of the file's, and back. Throws Error(file) with
  /// `where` for a config that has both, with values that differ.
  Json base_config(Json config, std::string_view where) const;
  Json file_config(Json config) const;
};

struct Family {
  std::string name;
  std::string about;
  std::string base;                  // the family that this one builds on; "" = none
  std::vector<std::string> unsure;   // open questions of its author, printed on loading
  std::vector<std::string> dropped;  // globs of our names whose rules of the base do not hold
  std::map<std::string, Json> tables;
  std::map<std::string, FamilyFunction> functions;
  NamedTemplates let;     // derived values
  NamedTemplates values;  // value <- spec
  std::shared_ptr<const Template> spec;
  std::vector<TensorRule> rules;
  std::map<std::string, Dialect, std::less<>> dialects;

  const Dialect& dialect(std::string_view kind) const;
  /// Whether the base's rule for these parameters of ours holds, `own` being what the family's own
  /// rules give. Throws Error(spec) where these replace a part of it.
  bool base_gives(const std::vector<std::string>& ours,
                  const std::set<std::string, std::less<>>& own) const;
  /// Whether this family reads a file of one of its types with this config.
  bool reads(std::string_view kind, const Json& config) const;
};

/// The built-in families and those of a folder of the user's, which win where both know a type.
class FamilySet {
 public:
  /// A folder is read like the built-in one: families, with fragments, also in shared/. A file
  /// that is malformed or unreadable affects no other: an error names it when a type or a family
  /// is not found, or is its own. Throws Error(file) for a folder that cannot
  /// be read.
  static FamilySet load(const std::filesystem::path& user_folder = {});
  /// One more family of the user's. `file` is named in messages; `checked`: its first use looks for
  /// names that nothing has. Throws Error(spec) or Error(file).
  void add_user(std::string_view text, const std::string& file, bool checked = true);
  /// As if there were no such family, and none that builds on it; for trials.
  void hide(const std::string& name);

  /// The family that reads `type` in dialect `kind` ("" = the one type of that dialect): of several
  /// one whose condition holds of the config, before the one that has none. Throws Error(file) with
  /// `where` that names the nearest types and the remedy.
  const Family& of_type(std::string_view kind,
                        std::string_view type,
                        const Json& config,
                        std::string_view where);
  /// Whether a family of the type "" reads this config, which has no type.
  bool knows_untyped(std::string_view kind, const Json& config);
  const Family& named(std::string_view name);
  std::vector<std::string> names() const;
  /// A family's file with everything that it builds on merged in.
  Json merged(const std::string& name) const;
  /// Throws Error(spec) for names in a family's own file that nothing has (family_check.h), as the
  /// first use of a user's does.
  void check_names(const std::string& name);
  /// The file of a family or of a fragment, as it is. Throws Error(usage).
  const Json& file(const std::string& name) const;
  /// Families and fragments that a family builds on, in the order in which they are merged, itself
  /// last.
  std::vector<std::string> files_of(const std::string& name) const;
  std::vector<std::string> fragments() const;
  /// Files of the user's that could not be read, one line each, with file and line.
  const std::vector<std::string>& broken() const { return broken_; }
  /// An error of a user's family with the file and the line of the entry that it names.
  Error located(const Error& error, std::string_view family) const;
  /// Types known in a dialect, sorted.
  std::vector<std::string> types(std::string_view kind) const;
  /// Keys without mathematics, by dialect; "*" matches any text.
  const std::vector<std::string>& metadata_keys(std::string_view kind) const;
  /// Keys that no family reads as 0: null is meant.
  const std::vector<std::string>& null_where_zero(std::string_view kind) const;
  /// The families that give a key of a dialect a meaning, or a member of it where the path ends
  /// with a dot.
  std::vector<std::string> readers_of(std::string_view kind, std::string_view path);
  /// Paths of members of an object of the config that the built-in families read.
  std::set<std::string> members_read(std::string_view kind, const std::string& object);
  /// Whether a key with this value asks for nothing, whichever family reads it: null, an empty text
  /// or list, "none", 0 and false (where absence does not mean true), a factor of 1, or a list of
  /// these.
  bool switched_off(std::string_view kind, std::string_view path, const Json& value) const;

 private:
  using KeyLists = std::map<std::string, std::vector<std::string>, std::less<>>;  // by dialect
  using SharedJson = std::shared_ptr<const Json>;  // by the copies of a set
  struct Source {
    SharedJson json;
    std::shared_ptr<const Family> compiled;
    std::string file = {}, text = {};  // of the user's
    bool checked = true;
  };
  static const FamilySet& built_in();  // parsed once in a process
  void add(std::string_view name, std::string_view text, bool fragment, const std::string& file);
  void add_file(const std::filesystem::path& path, bool fragment);
  Json merged(const std::string& name, int depth) const;
  Json below(const std::string& name, int depth) const;
  std::string broken_text() const;
  static const std::vector<std::string>& list_of(const KeyLists& lists, std::string_view kind);
  static void add_keys(const Json& lists, const std::string& where, KeyLists& to);
  void add_readers(const std::string& family, const Json& dialects);
  const Family& compile(const std::string& name);

  std::map<std::string, Source, std::less<>> families_;
  std::map<std::string, SharedJson, std::less<>> fragments_;
  struct Reader {
    std::string family;
    int rank;  // which is tried first: the user's, then those with a condition
  };
  using Readers = std::map<std::string, std::vector<Reader>, std::less<>>;  // by type
  std::map<std::string, Readers, std::less<>> readers_;                     // by dialect
  bool of_user_ = false;                                                    // what is being added
  std::vector<std::string> broken_;
  KeyLists unmathematical_, factors_, null_where_zero_, true_without_;
};

/// Compiles one file's JSON, fragments already merged in.
Family compile_family(const Json& json, const std::string& name);
/// Objects are merged, the lists "tensors" and "claims" appended, anything else is replaced.
void merge_family(Json& base, const Json& over);

/// The line, from 1, where a JSON text has the member "a.b[2].c", or the innermost of its owners
/// that it has; 0 = not even the first. Comments are JSON's of family files.
int line_of(std::string_view text, std::string_view path);
/// The identifiers in the strings of a family file that are expressions.
std::set<std::string> identifiers_of(const Json& json);

/// "*" matches any text, everything else itself.
bool matches_glob(std::string_view text, std::string_view glob);
bool matches_any(std::string_view text, const std::vector<std::string>& globs);

}  // namespace tessera::convert
