#include "tessera/convert/propose_tensors.h"

#include <algorithm>
#include <numeric>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/propose_names.h"
#include "tessera/convert/tensor_roles.h"

namespace tessera::convert {
namespace {

using Dims = std::vector<int64_t>;

constexpr double kLeastLikeness = 0.2;
constexpr double kCertainLikeness = 0.6;  // of names of one role

int64_t elements_of(const Dims& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

bool has_name(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

int64_t stars_of(const std::string& pattern) {
  return std::count(pattern.begin(), pattern.end(), '*');
}

/// Tensors of one pattern: what a base asks for, or what a file has.
struct TensorGroup {
  struct Member {
    std::vector<int64_t> numbers;
    std::vector<Dims> shapes;  // of the tensor; of what is expected, those of ours
    std::vector<std::string> ours;
    bool steps = false, alone = true;
    int64_t count = 0;  // elements of the one tensor
  };
  std::vector<Member> members;

  bool same_numbers(const TensorGroup& other) const {
    if (members.size() != other.members.size()) return false;
    for (size_t i = 0; i < members.size(); ++i)
      if (members[i].numbers != other.members[i].numbers) return false;
    return true;
  }
  const Member& front() const { return members.front(); }
  const Dims& shape() const { return members.front().shapes.front(); }
  /// Of groups with one star, the number of each layer.
  std::vector<int64_t> layers() const {
    std::vector<int64_t> numbers;
    for (const Member& member : members)
      if (!member.numbers.empty()) numbers.push_back(member.numbers.front());
    return numbers;
  }
};
using TensorGroups = std::map<std::string, TensorGroup>;

void sort_members(TensorGroups& groups) {
  for (auto& [pattern, group] : groups)
    std::sort(group.members.begin(), group.members.end(),
              [](const auto& a, const auto& b) { return a.numbers < b.numbers; });
}

enum class Fit { none, size, turned, exact };

Fit fit_of(const TensorGroup& expected, const TensorGroup& found) {
  if (!expected.same_numbers(found)) return Fit::none;
  Fit fit = Fit::exact;
  for (size_t i = 0; i < expected.members.size(); ++i) {
    const TensorGroup::Member& want = expected.members[i];
    const Dims& have = found.members[i].shapes.front();
    Fit one = Fit::none;
    if (want.ours.size() == 1 && want.alone && want.shapes.front() == have)
      one = Fit::exact;
    else if (want.ours.size() == 1 && want.alone && have.size() == 2 &&
             want.shapes.front() == Dims{have[1], have[0]})
      one = want.steps ? Fit::none : Fit::turned;
    else if (want.steps && want.count == elements_of(have))
      one = Fit::size;
    if (one == Fit::none) return one;
    fit = std::min(fit, one);
  }
  return fit;
}

/// "layers.3.mixer.q.weight" as "layers.{i}.mixer.q.weight".
std::string looped(const std::string& name) {
  std::string pattern = numbered(name).pattern;
  if (const size_t star = pattern.find('*'); star != std::string::npos)
    pattern.replace(star, 1, "{i}");
  return pattern;
}

/// The role of a parameter of ours, in terms of tensor_roles.h.
std::string own_role_of(const std::string& ours) {
  static const std::map<std::string, std::string> norms = {
      {"mixer_norm", "norm1"}, {"ffn_norm", "norm2"}, {"final_norm", "final_norm"}};
  const auto found = norms.find(inner_module(ours));
  return found == norms.end() ? role_of(ours) : found->second;
}

struct Pair {
  double like;
  std::string base, file;
  Fit fit;
};

/// Matches what a draft's dry run leaves over with what the file has left.
class Matcher {
 public:
  Matcher(Trial& trial, const Draft& draft) : trial_(trial), draft_(draft), before_(draft) {
    std::map<std::string, int64_t> sources;  // of a parameter, by the first of its rule
    for (const DryRun::Missing& missing : draft.dry.missing) ++sources[missing.ours.front()];
    for (const DryRun::Missing& missing : draft.dry.missing) {
      if (std::any_of(missing.shapes.begin(), missing.shapes.end(),
                      [](const Dims& shape) { return shape.empty(); }))
        continue;
      int64_t count = 0;
      for (const Dims& shape : missing.shapes) count += elements_of(shape);
      const NumberedName name = numbered(missing.name);
      expected_[name.pattern].members.push_back({name.numbers, missing.shapes, missing.ours,
                                                 missing.steps, missing.alone,
                                                 count / sources[missing.ours.front()]});
    }
    for (const std::string& file : draft.dry.unmapped)
      if (const format::TensorView* tensor = trial.evidence().find(file); tensor != nullptr) {
        const NumberedName name = numbered(file);
        found_[name.pattern].members.push_back({name.numbers, {tensor->shape}, {}, false, true, 0});
      }
    if (draft.dry.spec)
      for (const spec::ParamDecl& decl : model::parameters(*draft.dry.spec))
        shapes_[decl.name] = decl.shape;
    for (const std::string& ours : draft.dry.ungiven) add_ungiven(ours);
    // the base's rules take these and cannot use them
    for (const DryRun::Misshapen& one : draft.dry.misshapen)
      if (one.found.size() == 2 && one.expected == Dims{one.found[1], one.found[0]} &&
          release(one.source))
        add_ungiven(one.ours);
    for (const std::string& error : draft.dry.errors) release(error.substr(0, error.find(": ")));
    for (TensorGroups* groups : {&expected_, &found_, &ungiven_}) sort_members(*groups);
    for (const FilePattern& file : trial.evidence().patterns())
      if (stars_of(file.pattern) == 1 && file.shape.size() == 2 && file.shape[0] != file.shape[1] &&
          !found_.contains(file.pattern))
        ++straight_;
  }

  /// Whether anything was matched.
  bool run() {
    // first by words, then products, and by shapes alone what is left
    bool any = rename(kLeastLikeness);
    any = pack() || any;
    any = unpack() || any;
    any = give() || any;
    any = rename(-1) || any;
    if (turned_ > 0 && straight_ == 0) turn_squares();
    return any;
  }
  /// The same of names whose words say one part of the model.
  bool run_certain() { return rename(kCertainLikeness); }
  Draft&& draft() { return std::move(draft_); }

 private:
  void add_ungiven(const std::string& ours) {
    const NumberedName name = numbered(ours);
    ungiven_[name.pattern].members.push_back({name.numbers, {shapes_[ours]}, {ours}});
  }
  /// One tensor of the file, in quotes, that may be matched again.
  bool release(const std::string& quoted) {
    if (quoted.size() < 3 || quoted.front() != '"' || quoted.back() != '"') return false;
    const std::string file = quoted.substr(1, quoted.size() - 2);
    const format::TensorView* tensor = trial_.evidence().find(file);
    if (tensor == nullptr) return false;
    const NumberedName name = numbered(file);
    found_[name.pattern].members.push_back({name.numbers, {tensor->shape}, {}, false, true, 0});
    return true;
  }
  const TensorGroup& wanted(const std::string& pattern) {
    return expected_.contains(pattern) ? expected_[pattern] : ungiven_[pattern];
  }

  /// A value of the draft as it came, by which sizes are said.
  int64_t size(const char* name) { return trial_.size(before_, name); }
  bool has_value(const char* name) { return !is_absent(trial_.value(before_, name)); }
  /// A name of a value where it has this number, else the number.
  Json number(const char* name, int64_t wanted) {
    return size(name) == wanted ? Json(fmt::format("={}", name)) : Json(wanted);
  }

  void unsure(std::string what) { draft_.unsure.push_back(std::move(what)); }
  void add(const TensorGroup& group,
           const std::vector<std::string>& ours,
           const std::string& file,
           Json steps) {
    add_rule(draft_, size("n_layers"), group.layers(), ours, file, std::move(steps));
  }

  // --- one tensor for one ---

  bool same_layout(const std::string& base, const std::string& file, const TensorGroup& want) {
    if (want.front().ours.size() != 3 || role_of(file) != "qkv") return true;
    return inner_module(base) == inner_module(file) ||
           fused_by_head(trial_, inner_module(base)) == fused_by_head(trial_, inner_module(file));
  }

  bool rename(double least) {
    std::vector<Pair> pairs;
    std::map<std::string, int> fits_base, fits_file;
    for (const auto& [base, want] : expected_)
      for (const auto& [file, have] : found_)
        if (const Fit fit = fit_of(want, have); fit != Fit::none) {
          if (fit == Fit::size && !same_layout(base, file, want)) continue;
          const double like = likeness(base, file);
          pairs.push_back({like - (fit == Fit::exact ? 0 : 0.05), base, file, fit});
          ++fits_base[base];
          ++fits_file[file];
        }
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](const Pair& a, const Pair& b) { return a.like > b.like; });
    std::set<std::string> used_base, used_file;
    std::vector<Pair> taken;
    for (const Pair& pair : pairs) {
      if (used_base.contains(pair.base) || used_file.contains(pair.file)) continue;
      const bool only = fits_base[pair.base] == 1 && fits_file[pair.file] == 1;
      if (pair.like < least || (pair.like < kLeastLikeness && !only)) continue;
      if (pair.like < kLeastLikeness) {
        unsure(fmt::format("tensor \"{}\" is taken for \"{}\" by its shape alone", pair.file,
                           pair.base));
        ++draft_.doubtful;
      } else if (role_of(pair.base).empty() && !role_of(pair.file).empty()) {
        unsure(
            fmt::format("\"{}\" is read from \"{}\", which has a part of its own in other "
                        "families",
                        pair.base, pair.file));
        ++draft_.doubtful;
      }
      const auto rival = std::find_if(pairs.begin(), pairs.end(), [&](const Pair& other) {
        return other.base == pair.base && other.file != pair.file &&
               !used_file.contains(other.file) && other.like > pair.like - 0.02;
      });
      if (rival != pairs.end() && pair.like >= kLeastLikeness)
        unsure(fmt::format("\"{}\" is read from \"{}\"; \"{}\" fits as well", pair.base, pair.file,
                           rival->file));
      used_base.insert(pair.base);
      used_file.insert(pair.file);
      taken.push_back(pair);
      const Dims& shape = found_[pair.file].shape();
      const bool matrix = shape.size() == 2 && stars_of(pair.base) > 0;
      if (matrix && pair.fit == Fit::turned) ++turned_;
      if (matrix && pair.fit == Fit::exact && shape[0] != shape[1]) ++straight_;
    }
    Json names = draft_.hf().value("names", Json::object());
    for (Pair& pair : taken) {
      const TensorGroup::Member& want = expected_[pair.base].front();
      const Dims& shape = found_[pair.file].shape();
      const bool square = shape.size() == 2 && shape[0] == shape[1] && pair.fit == Fit::exact &&
                          stars_of(pair.base) > 0;
      if (square && turned_ > 0 && straight_ == 0) {
        unsure(fmt::format(
            "\"{}\" is square; it is turned over as the other matrices of its layer are",
            pair.file));
        pair.fit = Fit::turned;
      }
      if (pair.fit == Fit::turned && stars_of(pair.base) <= 1)
        add(expected_[pair.base], want.ours, pair.file, Json::array({{{"transpose", {1, 0}}}}));
      else
        names[pair.base] = pair.file;
    }
    if (!names.empty()) draft_.hf()["names"] = shortened(names);
    for (const Pair& pair : taken) {
      expected_.erase(pair.base);
      found_.erase(pair.file);
    }
    return !taken.empty();
  }

  // --- products that are packed ---

  /// Rotary rows of q and k of a spec whose rows lie in pairs, as files of the base have them.
  Json rotary_steps() {
    if (!has_value("rope_layout") || !has_value("rotary_dim") || !has_value("n_kv_heads"))
      return Json::array();
    const auto both = [](const char* step) {
      return Json::array(
          {{{step, {{"heads", "=n_heads"}, {"rotary", "=rotary_dim"}}}, {"only", {0}}},
           {{step, {{"heads", "=n_kv_heads"}, {"rotary", "=rotary_dim"}}}, {"only", {1}}}});
    };
    if (!has_value("hf_pairs"))
      return Json::array({{{"$if", "rope_layout == 'interleaved'"}, {"then", both("interleave")}}});
    return Json::array(
        {{{"$if", "hf_pairs and rope_layout == 'half'"}, {"then", both("deinterleave")}},
         {{"$if", "not hf_pairs and rope_layout == 'interleaved'"}, {"then", both("interleave")}}});
  }

  /// Steps from a matrix, or a vector, of heads with their queries, keys and values.
  Json steps_by_head(const Dims& shape, int64_t q_rows, int64_t k_rows) {
    const int64_t heads = size("n_heads");
    const int64_t width = heads > 0 ? q_rows / heads : 0, kv_heads = width > 0 ? k_rows / width : 0;
    if (kv_heads <= 0 || heads % kv_heads != 0 || shape.front() != q_rows + 2 * k_rows) return {};
    const auto with_columns = [&](Json dims) {
      if (shape.size() == 2) dims.push_back(number("d_model", shape[1]));
      return dims;
    };
    // in the terms of the family, so that the rule holds for models of other sizes
    const auto name_of = [&](const char* name, int64_t n) {
      return size(name) == n ? std::string(name) : std::to_string(n);
    };
    const bool grouped = size("n_kv_heads") == kv_heads;
    const std::string groups = grouped ? "n_kv_heads" : name_of("n_heads", kv_heads),
                      d = name_of("head_dim", width),
                      each = grouped ? "n_heads / n_kv_heads" : std::to_string(heads / kv_heads);
    const auto expressions = [](const std::vector<std::string>& texts) {
      Json list = Json::array();
      for (const std::string& text : texts) list.push_back("=" + text);
      return list;
    };
    Json steps = Json::array();
    const Json whole = expressions({fmt::format("(n_heads + 2 * {}) * {}", groups, d)}),
               parts = expressions({groups, each + " + 2", d});
    steps.push_back({{"reshape", {{"from", with_columns(whole)}, {"to", with_columns(parts)}}}});
    steps.push_back({{"split", {{"axis", 1}, {"sizes", {"=" + each, 1, 1}}}}});
    // of queries, then of keys and values
    for (const bool queries : {true, false}) {
      const Json from = expressions({groups, queries ? each : "1", d}),
                 to = expressions({fmt::format("{} * {}", queries ? "n_heads" : groups, d)}),
                 only = queries ? Json::array({0}) : Json::array({1, 2});
      steps.push_back(
          {{"reshape", {{"from", with_columns(from)}, {"to", with_columns(to)}}}, {"only", only}});
    }
    return steps;
  }

  /// Several of the base in one tensor of the file: queries, keys and values; gate and up.
  bool pack() {
    bool any = false;
    for (const std::vector<std::string>& roles :
         {std::vector<std::string>{"q", "k", "v"}, {"gate", "up"}, {"k", "v"}})
      for (const char* kind : {".weight", ".bias"}) {
        std::vector<std::string> parts;
        for (const std::string& role : roles)
          for (const TensorGroups* groups : {&expected_, &ungiven_}) {
            const auto part = std::find_if(groups->begin(), groups->end(), [&](const auto& one) {
              return one.first.ends_with(kind) && role_of(one.first) == role &&
                     one.second.front().alone && one.second.front().ours.size() == 1 &&
                     stars_of(one.first) == 1;
            });
            if (part == groups->end()) continue;
            parts.push_back(part->first);
            break;
          }
        if (parts.size() == roles.size()) any = pack_into(parts) || any;
      }
    // fused in the base too, in another order
    std::vector<std::string> fused;
    for (const auto& [base, want] : expected_)
      if (want.front().alone && want.front().steps && want.front().ours.size() == 3 &&
          stars_of(base) == 1 && role_of(want.front().ours.front()) == "q")
        fused.push_back(base);
    for (const std::string& base : fused) any = pack_into({base}) || any;
    return any;
  }

  bool pack_into(const std::vector<std::string>& parts) {
    const TensorGroup first = wanted(parts.front());
    std::vector<std::string> ours;
    std::vector<int64_t> rows;
    for (const std::string& part : parts) {
      const TensorGroup& group = wanted(part);
      if (!group.same_numbers(first)) return false;
      for (size_t i = 0; i < group.front().ours.size(); ++i) {
        ours.push_back(group.front().ours[i]);
        rows.push_back(group.front().shapes[i].front());
      }
    }
    Dims straight = first.shape();
    straight.front() = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    const Dims turned(straight.rbegin(), straight.rend());
    std::string best;
    double most = -1;
    for (const auto& [file, have] : found_) {
      if (!have.same_numbers(first) || (have.shape() != straight && have.shape() != turned))
        continue;
      const std::string role = role_of(file);
      const bool named = role == "qkv" || role == "gate_up" || role == "kv";
      if (!role.empty() && !named) continue;
      const double like = named ? 1 : 0.5;
      if (like > most) {
        most = like;
        best = file;
      }
    }
    if (best.empty()) return false;
    Json steps = Json::array();
    if (found_[best].shape() != straight) {
      steps.push_back({{"transpose", {1, 0}}});
      ++turned_;
    } else if (straight.size() == 2) {
      ++straight_;
    }
    const Json by_head = ours.size() == 3 && fused_by_head(trial_, inner_module(best))
                             ? steps_by_head(straight, rows[0], rows[1])
                             : Json();
    if (!by_head.is_null()) {
      for (const Json& step : by_head) steps.push_back(step);
      unsure(
          fmt::format("\"{}\" holds queries, keys and values head by head, as files of other "
                      "families with this name do",
                      best));
    } else {
      Json sizes = Json::array();
      for (const int64_t n : rows) sizes.push_back(size_text(n));
      steps.push_back({{"split", {{"axis", 0}, {"sizes", sizes}}}});
      unsure(fmt::format(
          "\"{}\" holds {} one after another; rows in another order have the same shape", best,
          fmt::join(ours, ", ")));
    }
    const Json rotary = ours.size() == 3 ? rotary_steps() : Json::array();
    for (const Json& step : rotary) steps.push_back(step);
    add(first, ours, best, steps);
    add_bias_of(first, ours, rows, best, !by_head.is_null(), rotary);
    for (const std::string& part : parts) {
      expected_.erase(part);
      ungiven_.erase(part);
    }
    found_.erase(best);
    return true;
  }

  /// The bias of a fused matrix, where the base takes it: its rows lie as those of the matrix do.
  void add_bias_of(const TensorGroup& group,
                   std::vector<std::string> ours,
                   const std::vector<int64_t>& rows,
                   const std::string& file,
                   bool by_head,
                   const Json& rotary) {
    if (!file.ends_with(".weight") || ours.size() != 3) return;
    const std::string bias = file.substr(0, file.size() - 6) + "bias";
    const auto& patterns = trial_.evidence().patterns();
    if (found_.contains(bias) ||
        std::none_of(patterns.begin(), patterns.end(),
                     [&](const FilePattern& one) { return one.pattern == bias; }))
      return;
    for (std::string& name : ours) {
      name = name.substr(0, name.size() - 6) + "bias";
      if (!shapes_.contains(name) || expected_.contains(numbered(name).pattern)) return;
    }
    const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    Json steps = by_head ? steps_by_head({total}, rows[0], rows[1]) : Json();
    if (!by_head) {
      Json sizes = Json::array();
      for (const int64_t n : rows) sizes.push_back(size_text(n));
      steps = Json::array({{{"split", {{"axis", 0}, {"sizes", sizes}}}}});
    }
    for (const Json& step : rotary) steps.push_back(step);
    add(group, ours, bias, steps);
  }

  /// Rows by the values of which they are the product, where there are such values.
  Json size_text(int64_t n) {
    const int64_t head = size("head_dim");
    if (head > 0 && size("n_heads") * head == n) return "=n_heads * head_dim";
    if (head > 0 && size("n_kv_heads") * head == n) return "=n_kv_heads * head_dim";
    return number("d_hidden", n);
  }

  /// One tensor of the base that the file has in parts.
  bool unpack() {
    std::vector<std::string> done;
    for (const auto& [base, want] : expected_) {
      const TensorGroup::Member& first = want.front();
      if (first.ours.size() < 2 || !first.alone || stars_of(base) > 1) continue;
      std::vector<std::string> parts;
      for (size_t k = 0; k < first.ours.size(); ++k) {
        std::string best;
        double most = kLeastLikeness;
        for (const auto& [file, have] : found_) {
          const double like = likeness(numbered(first.ours[k]).pattern, file);
          if (!have.same_numbers(want) || have.shape() != first.shapes[k] ||
              has_name(parts, file) || like <= most)
            continue;
          most = like;
          best = file;
        }
        if (best.empty()) break;
        parts.push_back(best);
      }
      if (parts.size() != first.ours.size()) continue;
      for (size_t k = 0; k < parts.size(); ++k) {
        add(want, {first.ours[k]}, parts[k], Json::array());
        found_.erase(parts[k]);
      }
      done.push_back(base);
    }
    for (const std::string& base : done) expected_.erase(base);
    return !done.empty();
  }

  /// Parameters that no rule of the base gives, or not in this shape, from tensors of their role.
  bool give() {
    std::vector<std::string> done;
    for (const auto& [pattern, want] : ungiven_) {
      const std::string role = own_role_of(pattern);
      if (role.empty() || stars_of(pattern) > 1) continue;
      for (auto file = found_.begin(); file != found_.end(); ++file) {
        const Fit fit = fit_of(want, file->second);
        if (role_of(file->first) != role || (fit != Fit::exact && fit != Fit::turned) ||
            file->first.substr(file->first.rfind('.')) != pattern.substr(pattern.rfind('.')))
          continue;
        if (fit == Fit::turned) ++turned_;
        add(want, want.front().ours, file->first,
            fit == Fit::turned ? Json::array({{{"transpose", {1, 0}}}}) : Json::array());
        found_.erase(file);
        done.push_back(pattern);
        break;
      }
    }
    for (const std::string& pattern : done) ungiven_.erase(pattern);
    return !done.empty();
  }

  /// Square matrices of layers that the base takes as they are, where all others lie turned over.
  void turn_squares() {
    TensorGroups squares;
    for (const auto& [ours, shape] : shapes_)
      if (shape.size() == 2 && shape[0] == shape[1])
        if (const NumberedName name = numbered(ours); name.numbers.size() == 1)
          squares[name.pattern].members.push_back({name.numbers, {shape}, {ours}});
    sort_members(squares);
    for (const FilePattern& file : trial_.evidence().patterns()) {
      if (stars_of(file.pattern) != 1 || file.shape.size() != 2 || file.shape[0] != file.shape[1] ||
          file.role.empty() || is_renamed_here(file.pattern))
        continue;
      for (const auto& [pattern, group] : squares)
        if (own_role_of(pattern) == file.role && pattern.ends_with(".weight") &&
            group.members.size() == file.count && group.shape() == file.shape) {
          add(group, group.front().ours, file.pattern, Json::array({{{"transpose", {1, 0}}}}));
          unsure(fmt::format(
              "\"{}\" is square; it is turned over as the other matrices of its layer are",
              file.pattern));
        }
    }
  }
  /// Whether a rule or a rename of the draft is of this pattern already.
  bool is_renamed_here(std::string pattern) {
    const std::string all = draft_.family.dump();
    if (all.find("\"" + pattern + "\"") != std::string::npos) return true;
    if (const size_t star = pattern.find('*'); star != std::string::npos)
      pattern.replace(star, 1, "{i}");
    return all.find("\"" + pattern + "\"") != std::string::npos;
  }

  Trial& trial_;
  Draft draft_, before_;
  std::map<std::string, Dims> shapes_;  // of all parameters
  TensorGroups expected_, found_, ungiven_;
  size_t turned_ = 0, straight_ = 0;  // matrices of layers that are not square
};

}  // namespace

bool map_tensors(Trial& trial, Draft& draft) {
  if (!draft.dry.spec) return false;
  Matcher matcher(trial, draft);
  if (!matcher.run()) return false;
  if (trial.take_if_better(draft, matcher.draft())) return true;
  // doubtful matches take no certain ones with them
  Matcher certain(trial, draft);
  return certain.run_certain() && trial.take_if_better(draft, certain.draft());
}

void add_rule(Draft& draft,
              int64_t n_layers,
              const std::vector<int64_t>& numbers,
              const std::vector<std::string>& ours,
              const std::string& file,
              Json steps) {
  Json names = Json::array();
  for (const std::string& name : ours) names.push_back(looped(name));
  std::string foreign = file;
  if (const size_t star = foreign.find('*'); star != std::string::npos)
    foreign.replace(star, 1, "{i}");
  Json rule = {{"ours", names.size() == 1 ? names.front() : names}};
  rule[kHf] = steps.empty() ? Json(foreign) : Json{{"name", foreign}, {"steps", std::move(steps)}};
  Json& rules = draft.family["tensors"];
  if (numbers.empty()) {
    rules.push_back(rule);
    return;
  }
  bool all = n_layers == std::ssize(numbers);
  for (size_t i = 0; i < numbers.size(); ++i) all = all && numbers[i] == static_cast<int64_t>(i);
  const std::string loop =
      all ? "i in range(n_layers)" : fmt::format("i in [{}]", fmt::join(numbers, ", "));
  if (!rules.empty() && rules.back().value("for", Json()) == loop)
    rules.back()["rules"].push_back(rule);
  else
    rules.push_back({{"for", loop}, {"rules", Json::array({rule})}});
}

}  // namespace tessera::convert
