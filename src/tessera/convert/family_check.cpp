#include "tessera/convert/family_check.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/family_json.h"
#include "tessera/spec/names.h"

namespace tessera::convert {

using namespace family_json;

namespace {

/// Names of a family that C++ asks for, and no expression needs to.
constexpr const char* kReadByName[] = {"tied", "expert_rows"};
/// Names that are there without a definition.
constexpr const char* kGiven[] = {"config", "spec", "origin", "origin_dialect"};

// --- texts that a pattern stands for ----------------------------------------------------------

/// A letter, or a star: any text, or any without a dot.
struct Piece {
  enum class Kind { letter, part, any } kind;
  char letter = 0;
};
using Pieces = std::vector<Piece>;

void add_letters(Pieces& pieces, std::string_view text) {
  for (const char c : text) pieces.push_back({Piece::Kind::letter, c});
}

/// A pattern of "names", whose stars are parts between dots, the last one the rest; of others any
/// text.
Pieces pieces_of(std::string_view glob, bool parts) {
  Pieces pieces;
  for (size_t i = 0; i < glob.size(); ++i)
    if (glob[i] != '*')
      pieces.push_back({Piece::Kind::letter, glob[i]});
    else
      pieces.push_back({parts && i + 1 < glob.size() ? Piece::Kind::part : Piece::Kind::any});
  return pieces;
}

/// Whether some text is of both patterns.
class Meeting {
 public:
  Meeting(const Pieces& a, const Pieces& b)
      : a_(a), b_(b), failed_((a.size() + 1) * (b.size() + 1)) {}
  bool at(size_t i, size_t j) {
    if (i == a_.size() && j == b_.size()) return true;
    const size_t place = i * (b_.size() + 1) + j;
    if (failed_[place]) return false;
    const bool star_a = i < a_.size() && a_[i].kind != Piece::Kind::letter;
    const bool star_b = j < b_.size() && b_[j].kind != Piece::Kind::letter;
    bool found = false;
    if (star_a) found = at(i + 1, j) || (j < b_.size() && takes(a_[i], b_[j]) && at(i, j + 1));
    if (!found && star_b)
      found = at(i, j + 1) || (i < a_.size() && takes(b_[j], a_[i]) && at(i + 1, j));
    if (!found && !star_a && !star_b && i < a_.size() && j < b_.size())
      found = a_[i].letter == b_[j].letter && at(i + 1, j + 1);
    failed_[place] = !found;
    return found;
  }

 private:
  static bool takes(const Piece& star, const Piece& other) {
    return other.kind != Piece::Kind::letter || star.kind == Piece::Kind::any ||
           other.letter != '.';
  }
  const Pieces &a_, &b_;
  std::vector<bool> failed_;
};

bool meet(const Pieces& a, const Pieces& b) {
  return Meeting(a, b).at(0, 0);
}

// --- names of a family ------------------------------------------------------------------------

/// What `body` collects, within a loop if there is one.
void collect_within(const std::optional<Loop>& loop,
                    ExprNames& names,
                    const std::function<void()>& body) {
  if (loop)
    loop->collect_names(names, body);
  else
    body();
}

void collect(const RuleName& name, ExprNames& names) {
  collect_within(name.loop, names, [&] {
    for (const NamePattern& spelling : name.spellings)
      for (const Expr& expr : spelling.exprs()) expr.collect_names(names);
  });
}

void collect(const TensorRule& rule, ExprNames& names) {
  collect_within(rule.loop, names, [&] {
    if (rule.condition) rule.condition->collect_names(names);
    if (rule.values) rule.values->collect_names(names);
    for (const RuleName& name : rule.ours) collect(name, names);
    for (const auto& [kind, side] : rule.sides) {
      for (const RuleName& name : side.names) collect(name, names);
      side.steps.collect_names(names);
    }
    for (const TensorRule& child : rule.rules) collect(child, names);
  });
}

void collect(const NamedTemplates& list, ExprNames& names) {
  for (const auto& [name, body] : list) body->collect_names(names);
}

ExprNames names_of(const Family& family) {
  ExprNames names;
  collect(family.let, names);
  collect(family.values, names);
  family.spec->collect_names(names);
  for (const TensorRule& rule : family.rules) collect(rule, names);
  for (const auto& [kind, dialect] : family.dialects) {
    for (const NamedTemplates* list : {&dialect.read, &dialect.written, &dialect.fixed})
      collect(*list, names);
    if (dialect.when) dialect.when->collect_names(names);
    if (dialect.write) dialect.write->collect_names(names);
    if (dialect.remark) dialect.remark->collect_names(names);
  }
  // functions that something calls, which may call others
  std::set<std::string> seen;
  for (bool more = true; more;) {
    more = false;
    for (const auto& [name, function] : family.functions) {
      if (!names.called.contains(name) || !seen.insert(name).second) continue;
      more = true;
      names.bound.insert(function.params.begin(), function.params.end());
      names.locals.insert(function.params.begin(), function.params.end());
      function.body->collect_names(names);
      names.locals.clear();
    }
  }
  return names;
}

/// The values that a family defines, of all dialects.
std::set<std::string> defined_by(const Family& family) {
  std::set<std::string> names(std::begin(kGiven), std::end(kGiven));
  for (const auto& [name, table] : family.tables) names.insert(name);
  const auto add = [&](const NamedTemplates& list) {
    for (const auto& [name, body] : list) names.insert(name);
  };
  add(family.let);
  add(family.values);
  for (const auto& [kind, dialect] : family.dialects)
    for (const NamedTemplates* list : {&dialect.read, &dialect.written, &dialect.fixed}) add(*list);
  return names;
}

/// A list of entries in the file, where = "family.dialect.entry".
class Checks {
 public:
  explicit Checks(const FamilyParts& parts)
      : parts_(parts),
        family_(parts.family),
        names_(names_of(parts.family)),
        defined_(defined_by(parts.family)) {
    for (const TensorRule& rule : family_.rules) find_loops(rule);
  }

  void run() {
    check_used();
    check_defined();
    check_drop();
    const Json* dialects = get(parts_.own, "dialects");
    if (dialects == nullptr || !dialects->is_object()) return;
    for (const auto& [kind, own] : dialects->items()) {
      if (!own.is_object()) continue;
      const std::string where = fmt::format("{}.{}", family_.name, kind);
      if (own.contains("inherited"))
        fail(ErrorKind::spec, where,
             "unknown key \"inherited\"; a dialect that the file does not "
             "name is the base's");
      check_taken_back(kind, own, where);
      check_keys(kind, own, where);
      check_when(kind, where);
      check_names(kind, own, where);
    }
  }

 private:
  void check_used() const {
    std::set<std::string> used(std::begin(kReadByName), std::end(kReadByName));
    for (const auto* list : {&names_.used, &names_.called})
      for (const auto& [name, place] : *list) used.insert(name);
    const std::vector<std::string> known(used.begin(), used.end());
    // what replaces an entry of the base takes its keys from the base
    const auto check = [&](const Json& owner, const Json* below, const char* entry,
                           const std::string& of) {
      const Json *values = get(owner, entry),
                 *replaced = below == nullptr ? nullptr : get(*below, entry);
      if (values == nullptr || !values->is_object()) return;
      for (const auto& [key, value] : values->items())
        if (!used.contains(key.substr(0, key.find('('))) &&
            (replaced == nullptr || !replaced->contains(key)))
          fail(ErrorKind::spec, fmt::format("{}.{}.{}", of, entry, key),
               "no expression of the family has this name{}", spec::did_you_mean(key, known));
    };
    for (const char* entry : {"let", "values", "tables", "functions"})
      check(parts_.own, &parts_.below, entry, family_.name);
    const Json *dialects = get(parts_.own, "dialects"), *others = get(parts_.below, "dialects");
    if (dialects == nullptr) return;
    for (const auto& [kind, dialect] : dialects->items())
      for (const char* entry : {"read", "written", "fixed"})
        check(dialect, others == nullptr ? nullptr : get(*others, kind.c_str()), entry,
              family_.name + "." + kind);
  }

  /// Names in the file's own expressions.
  void check_defined() const {
    const std::set<std::string> own = identifiers_of(parts_.own);
    std::set<std::string> known = defined_;
    known.insert(names_.bound.begin(), names_.bound.end());
    const auto in_the_file = [&](const std::string& name, const std::string& first) {
      const std::string place = place_of_name(parts_, name);
      return place.empty() ? first : place;
    };
    for (const auto& [name, place] : names_.used)
      if (!known.contains(name) && own.contains(name))
        fail(ErrorKind::spec, in_the_file(name, place), "there is no value \"{}\"{}", name,
             spec::did_you_mean(name, {known.begin(), known.end()}));
    std::vector<std::string> functions = function_names();
    for (const auto& [name, function] : family_.functions) functions.push_back(name);
    for (const auto& [name, place] : names_.called)
      if (std::find(functions.begin(), functions.end(), name) == functions.end() &&
          own.contains(name))
        fail(ErrorKind::spec, in_the_file(name, place), "there is no function \"{}\"{}", name,
             spec::did_you_mean(name, functions));
  }

  void check_drop() const {
    const Json* drop = get(parts_.own, "drop");
    if (drop == nullptr) return;
    for (const std::string& glob : family_.dropped) {
      const Pieces pattern = pieces_of(glob, false);
      bool fits = false;
      const std::function<void(const TensorRule&)> look = [&](const TensorRule& rule) {
        for (const RuleName& name : rule.ours)
          for (const Pieces& pieces :
               all_of(name.spellings.front(), family_.dialects.begin()->first))
            fits = fits || (rule.inherited && meet(pattern, pieces));
        for (const TensorRule& child : rule.rules) look(child);
      };
      for (const TensorRule& rule : family_.rules) look(rule);
      const auto place =
          std::find(drop->begin(), drop->end(), Json(std::string(kDroppedTensors) + glob));
      if (!fits)
        fail(ErrorKind::spec, fmt::format("{}.drop[{}]", family_.name, place - drop->begin()),
             "no rule of the base gives a parameter \"{}\"", glob);
    }
  }

  void check_taken_back(const std::string& kind, const Json& own, const std::string& where) const {
    static const Json kNone = Json::object();
    const Json* dialects = get(parts_.below, "dialects");
    const Json* below = dialects == nullptr ? nullptr : get(*dialects, kind.c_str());
    for (const char* entry : {"expect", "keys", "names"}) {
      const Json* list = get(own, entry);
      if (list == nullptr || !list->is_object()) continue;
      const Json* other = below == nullptr ? nullptr : get(*below, entry);
      if (other == nullptr) other = &kNone;
      for (const auto& [key, value] : list->items()) {
        if (!value.is_null() || other->contains(key)) continue;
        std::vector<std::string> known;
        for (const auto& [name, given] : other->items()) known.push_back(name);
        fail(ErrorKind::spec, fmt::format("{}.{}.{}", where, entry, key),
             "null takes back an entry of the base, which has none of this name{}",
             spec::did_you_mean(key, known));
      }
    }
  }

  // --- keys -----------------------------------------------------------------------------------

  /// Keys of the config that the family reads, by the base's names; `when` excepted.
  std::set<std::string> keys_read(const std::string& kind) const {
    std::set<std::string> paths;
    const Dialect& dialect = family_.dialect(kind);
    for (const auto& [name, body] : dialect.read) body->collect_paths("config", paths);
    for (const auto& [name, body] : family_.let) body->collect_paths("config", paths);
    for (const auto& [name, function] : family_.functions)
      function.body->collect_paths("config", paths);
    family_.spec->collect_paths("config", paths);
    const std::function<void(const TensorRule&)> add = [&](const TensorRule& rule) {
      if (rule.condition) rule.condition->collect_paths("config", paths);
      if (rule.loop) rule.loop->list.collect_paths("config", paths);
      for (const TensorRule& child : rule.rules) add(child);
    };
    for (const TensorRule& rule : family_.rules) add(rule);
    for (const auto& [path, values] : dialect.expect) paths.insert(path);
    if (const Json* claims = get(parts_.merged.at("dialects").at(kind), "claims"))
      for (const std::string& path : strings_of(*claims, kind)) paths.insert(path);
    return paths;
  }

  /// Whether a path, its owner as a whole, or a member of it is among them.
  static bool holds(const std::set<std::string>& paths, const std::string& path) {
    for (size_t dot = path.size(); dot != std::string::npos; dot = path.rfind('.', dot - 1)) {
      if (paths.contains(path.substr(0, dot)) || paths.contains(path.substr(0, dot) + ".*"))
        return true;
      if (dot == 0) break;
    }
    const auto below = paths.lower_bound(path + ".");
    return below != paths.end() && below->starts_with(path + ".");
  }

  void check_keys(const std::string& kind, const Json& own, const std::string& where) const {
    const Json* keys = get(own, "keys");
    if (keys == nullptr) return;
    const Dialect& dialect = family_.dialect(kind);
    // by the file's name a key is not there any more
    const auto check = [&](const std::set<std::string>& paths, const std::string& entry) {
      for (const std::string& path : paths)
        for (const auto& [base, file] : dialect.keys)
          if ((path == file || path.starts_with(file + ".")) && base != file &&
              std::none_of(dialect.keys.begin(), dialect.keys.end(),
                           [&](const auto& one) { return one.first == file; }))
            fail(ErrorKind::spec, entry, "\"{}\" is \"{}\" here, by \"keys\"; expected that name",
                 file, base);
    };
    const Json* values = get(own, "read");
    for (const auto& [name, body] : dialect.read) {
      if (values == nullptr || !values->contains(name)) continue;
      std::set<std::string> paths;
      body->collect_paths("config", paths);
      check(paths, fmt::format("{}.read.{}", where, name));
    }
    if (const Json* expect = get(own, "expect"))
      for (const auto& [path, allowed] : expect->items())
        check({path}, fmt::format("{}.expect.{}", where, path));
    const std::set<std::string> read = keys_read(kind);
    for (const auto& [base, file] : keys->items()) {
      if (file.is_null()) continue;
      const std::string place = fmt::format("{}.keys.{}", where, base);
      if (!holds(read, base) && !dialect.ignores_key(base) &&
          !matches_any(base, parts_.set.metadata_keys(kind)))
        fail(ErrorKind::spec, place, "the family reads no such key{}",
             spec::did_you_mean(base, {read.begin(), read.end()}));
      for (const auto& [other, name] : dialect.keys)
        if (name == file && other != base)
          fail(ErrorKind::spec, place, "\"{}\" of the file is \"{}\" already; expected one of them",
               name, other);
    }
  }

  /// A condition's key that is nearly one of those that the family reads. Whether there is a key
  /// may be asked of those of other families.
  void check_when(const std::string& kind, const std::string& where) const {
    const Dialect& dialect = family_.dialect(kind);
    const Json* when = get(parts_.own.at("dialects").at(kind), "when");
    if (when == nullptr || !dialect.when) return;
    std::set<std::string> read = keys_read(kind), paths;
    for (const auto& [base, file] : dialect.keys) read.insert(file);
    dialect.when->collect_paths("config", paths);
    for (const std::string& path : paths) {
      const bool asked = when->is_string() && when->get<std::string>().find(fmt::format(
                                                  "has(config.{})", path)) != std::string::npos;
      if (asked || holds(read, path) || matches_any(path, parts_.set.metadata_keys(kind))) continue;
      const std::string near = spec::did_you_mean(path, {read.begin(), read.end()});
      if (!near.empty())
        fail(ErrorKind::spec, where + ".when", "the family reads no key \"{}\"{}", path, near);
    }
  }

  // --- names of tensors -----------------------------------------------------------------------

  /// What an expression in a name may give: some of these texts, a number, or what cannot be told.
  struct Values {
    std::set<std::string> texts;
    bool number = false, any = false;
  };

  static void add_texts(const Json& json, std::set<std::string>& texts) {
    if (json.is_string()) texts.insert(json.get<std::string>());
    if (json.is_structured())
      for (const Json& member : json) add_texts(member, texts);
  }

  void add_values(const ExprNames& names,
                  const std::string& kind,
                  int depth,
                  Values& values) const {
    constexpr int kMaxDepth = 8;
    values.any = values.any || names.joins || depth > kMaxDepth;
    for (const auto& [name, place] : names.called)
      values.any = values.any || family_.functions.contains(name);
    if (values.any) return;
    values.texts.insert(names.texts.begin(), names.texts.end());
    for (const auto& [name, place] : names.used) {
      ExprNames inner;
      bool found = false;
      const auto add = [&](const NamedTemplates& list) {
        for (const auto& [key, body] : list)
          if (key == name) {
            body->collect_names(inner);
            found = true;
          }
      };
      add(family_.let);
      const Dialect& dialect = family_.dialect(kind);
      for (const NamedTemplates* list : {&dialect.read, &dialect.written}) add(*list);
      if (const auto table = family_.tables.find(name); table != family_.tables.end())
        add_texts(table->second, values.texts);
      if (const auto loops = loops_.find(name); loops != loops_.end()) {
        for (const Loop* loop : loops->second) loop->list.collect_names(inner);
        found = true;
      }
      if (!found) {
        values.number = true;  // of the config
        continue;
      }
      inner.used.erase(name);
      add_values(inner, kind, depth + 1, values);
    }
    values.number = values.number || (names.used.empty() && names.texts.empty());
  }

  /// The patterns of a rule's name.
  std::vector<Pieces> all_of(const NamePattern& pattern, const std::string& kind) const {
    std::vector<Pieces> list(1);
    add_letters(list[0], pattern.literals()[0]);
    for (size_t k = 0; k < pattern.exprs().size(); ++k) {
      const Expr& expr = pattern.exprs()[k];
      Values values;
      if (expr.text() == "i" || expr.text().ends_with(".i")) {
        values.number = true;
      } else {
        ExprNames names;
        // a member is one of its owner's texts, whatever chooses it
        const size_t owner = expr.text().find_first_of(".[");
        const std::string name = expr.text().substr(0, owner);
        if (owner != std::string::npos && name.find_first_of(" (+'") == std::string::npos)
          names.used.emplace(name, "");
        else
          expr.collect_names(names);
        add_values(names, kind, 0, values);
      }
      // where there are texts, numbers are of conditions and of other members
      values.number = values.number && values.texts.empty();
      constexpr size_t kMostPatterns = 512;
      if (list.size() * (values.texts.size() + 1) > kMostPatterns) values.any = true;
      std::vector<Pieces> next;
      for (const Pieces& one : list) {
        if (values.any || values.number) {
          next.push_back(one);
          next.back().push_back({values.any ? Piece::Kind::any : Piece::Kind::part});
        }
        if (values.any) continue;
        for (const std::string& text : values.texts) {
          next.push_back(one);
          add_letters(next.back(), text);
        }
      }
      for (Pieces& one : next) add_letters(one, pattern.literals()[k + 1]);
      list = std::move(next);
    }
    return list;
  }

  void find_loops(const TensorRule& rule) {
    const auto note = [&](const std::optional<Loop>& loop) {
      if (loop) loops_[loop->variable].push_back(&*loop);
    };
    note(rule.loop);
    for (const RuleName& name : rule.ours) note(name.loop);
    for (const auto& [kind, side] : rule.sides)
      for (const RuleName& name : side.names) note(name.loop);
    for (const TensorRule& child : rule.rules) find_loops(child);
  }

  /// "a.b.*" of the names that rules have, to as many parts as the pattern.
  static std::string shortened(std::string_view name, std::string_view pattern) {
    const auto dots = std::count(pattern.begin(), pattern.end(), '.');
    std::string text;
    int64_t seen = 0;
    for (const char c : name) {
      if (c == '.' && seen++ == dots) break;
      text += c;
    }
    const size_t last = text.rfind('.');
    return pattern.ends_with(".*") && last != std::string::npos ? text.substr(0, last) + ".*"
                                                                : text;
  }

  static std::string text_of(const Pieces& pieces) {
    std::string text;
    for (const Piece& piece : pieces)
      text += piece.kind == Piece::Kind::letter ? piece.letter : '*';
    return text;
  }

  void check_names(const std::string& kind, const Json& own, const std::string& where) {
    const Json* names = get(own, "names");
    if (names == nullptr) return;
    const Dialect& dialect = family_.dialect(kind);
    std::vector<Pieces> known;
    const std::function<void(const TensorRule&)> add = [&](const TensorRule& rule) {
      if (const auto side = rule.sides.find(kind); side != rule.sides.end())
        for (const RuleName& name : side->second.names)
          for (const NamePattern& spelling : name.spellings)
            for (Pieces& pieces : all_of(spelling, kind)) known.push_back(std::move(pieces));
      for (const TensorRule& child : rule.rules) add(child);
    };
    for (const TensorRule& rule : family_.rules) add(rule);
    for (const auto* list : {&dialect.ignored_heads, &dialect.ignored_tensors})
      for (const auto& [glob, why] : *list)
        if (!glob.starts_with('*')) known.push_back(pieces_of(glob, false));
    std::map<std::string, std::string> given;
    for (const auto& [base, file] : names->items()) {
      if (file.is_null()) continue;
      const std::string place = fmt::format("{}.names.{}", where, base);
      const Pieces pattern = pieces_of(base, true);
      if (std::none_of(known.begin(), known.end(),
                       [&](const Pieces& pieces) { return meet(pattern, pieces); })) {
        std::set<std::string> near;
        for (const Pieces& pieces : known) near.insert(shortened(text_of(pieces), base));
        fail(ErrorKind::spec, place, "no tensor rule of the family has this name{}",
             spec::did_you_mean(base, {near.begin(), near.end()}));
      }
      const auto [other, fresh] = given.emplace(file.get<std::string>(), base);
      if (!fresh)
        fail(ErrorKind::spec, place, "\"{}\" of the file is \"{}\" already; expected one of them",
             other->first, other->second);
    }
  }

  const FamilyParts& parts_;
  const Family& family_;
  ExprNames names_;
  std::set<std::string> defined_;
  std::map<std::string, std::vector<const Loop*>> loops_;  // of rules, by their variables
};

}  // namespace

void check_family_names(const FamilyParts& parts) {
  Checks(parts).run();
  check_family_members(parts);
}

}  // namespace tessera::convert
