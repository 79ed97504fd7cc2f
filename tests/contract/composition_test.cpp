// Which parts compose: specs drawn at random from the cases of all parts. One that is read must
// run, alone and from a state, come back from a file and generate; one that is refused says why.
// docs/mechanisms/composability.md says for each pair of parts which of the two it is; the test
// fails when that page is stale, TESSERA_WRITE_GOLDEN=1 writes it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <set>

#include <fmt/ranges.h>

#include "tessera/analysis/contract/exceptions.h"
#include "tessera/analysis/contract/kit.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/base/testing.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/loading/load_model.h"

namespace tessera::contract::composition_test {
namespace {

constexpr int64_t kTokens = 11;

std::vector<const Case*> cases_of(Slot slot) {
  std::vector<const Case*> out;
  for (const Case& c : cases())
    if (c.mechanism != nullptr && c.mechanism->slot == slot && c.problem.empty()) out.push_back(&c);
  return out;
}

bool takes(const spec::Mechanism& mechanism, const char* field) {
  const Json schema = mechanism.schema();
  return schema["properties"].contains(field);
}

bool acts_on_embedding(const Case& position) {
  return position.mechanism->info.place == spec::Place::embedding;
}

/// A spec and the parts in it, by the path at which a refusal would name them.
struct Draw {
  Json json;
  std::map<std::string, const Case*> parts;
  /// Their other names: what a stack takes from the spec around it, and parameters that are shared.
  std::map<std::string, const Case*> also;

  /// The part that refuses: that of the longest path the message begins with.
  const Case* refusing(const std::string& message) const {
    const Case* found = nullptr;
    size_t longest = 0;
    for (const auto* names : {&parts, &also})
      for (const auto& [path, part] : *names)
        if (path.size() >= longest &&
            (message.starts_with("[" + path) || message.starts_with("[" + as_in_parameters(path))))
          found = part, longest = path.size();
    return found;
  }
  /// "stacks.decoder.layers[1].mixer" as the names of parameters begin: "decoder.layers.1.mixer".
  static std::string as_in_parameters(std::string path) {
    if (path.starts_with("stacks.")) path.erase(0, std::string_view("stacks.").size());
    std::erase(path, ']');
    std::replace(path.begin(), path.end(), '[', '.');
    return path;
  }
};

class Drawer {
 public:
  explicit Drawer(uint64_t seed) : random_(seed) {}

  Draw draw() {
    Draw d;
    const bool decoder = chance(3, 4);
    d.json = {{"tessera", 1},
              {"arch", decoder ? "decoder" : "encoder"},
              {"vocab", kVocab},
              {"d_model", kWidth}};
    add_for(d, "embed", d.json, "embed", Slot::embed);
    const Case* position = pick(Slot::position);
    if (acts_on_embedding(*position)) {
      d.json["embed"]["position"] = position->part;
      d.parts["embed.position"] = position;
    }
    add(d, "head", d.json, "head", Slot::head);
    add_init(d);
    if (decoder && chance(1, 6)) {
      d.json["arch"] = "encoder_decoder";
      d.json["start"] = 1;
      const Case* cross = pick(Slot::mixer, /*reading_a_source=*/true);
      d.json["cross"] = cross->part;
      d.parts["cross"] = cross;
      for (const auto& [path, part] : d.parts)
        for (const char* stack : {"encoder", "decoder"})
          d.also[fmt::format("stacks.{}.{}", stack, path)] = part;
      for (const char* stack : {"encoder", "decoder"})
        d.json["stacks"][stack]["layers"] = layers(d, fmt::format("stacks.{}.", stack), position);
      for (size_t i = 0; i < d.json["stacks"]["decoder"]["layers"].size(); ++i)
        d.also[fmt::format("stacks.decoder.layers[{}].cross", i)] = cross;
    } else {
      d.json["layers"] = layers(d, "", position);
    }
    return d;
  }

 private:
  int64_t below(uint64_t n) { return static_cast<int64_t>(random_() % n); }
  bool chance(int64_t of, uint64_t n) { return below(n) < of; }
  /// A mixer that reads a source stands in the "cross" of two stacks, and nowhere else.
  const Case* pick(Slot slot, bool reading_a_source = false) {
    std::vector<const Case*> all = cases_of(slot);
    std::erase_if(all, [&](const Case* c) {
      return slot == Slot::mixer && c->decoder.contains("stacks") != reading_a_source;
    });
    return all[static_cast<size_t>(below(all.size()))];
  }
  void add(Draw& d, const std::string& path, Json& to, const char* key, Slot slot) {
    const Case* part = pick(slot);
    to[key] = part->part;
    d.parts[path] = part;
    if (slot == Slot::ffn && takes(*part->mechanism, "router") && chance(3, 4))
      add(d, path + ".router", to[key], "router", Slot::router);
  }

  /// Of what every model has: those that a decoder refuses would refuse most of them.
  void add_for(Draw& d, const std::string& path, Json& to, const char* key, Slot slot) {
    do {
      add(d, path, to, key, slot);
    } while (d.json["arch"] != "encoder" && d.parts[path]->encoder_only && chance(7, 8));
  }

  /// Under mup a tied head takes one factor alone, which that of a case seldom is.
  void add_init(Draw& d) {
    const spec::Mechanism& head = *d.parts["head"]->mechanism;
    do {
      add(d, "init", d.json, "init", Slot::init);
    } while (d.parts["init"]->mechanism->name == "mup" && head.name == "tied" && chance(7, 8));
  }

  Json layers(Draw& d, const std::string& path, const Case* position) {
    Json list = Json::array();
    // every layer of a decoder beside an encoder has a "cross" of its own
    const bool branches = !path.starts_with("stacks.decoder");
    const int64_t n = 1 + below(3);
    for (int64_t i = 0; i < n; ++i) {
      const std::string at = fmt::format("{}layers[{}]", path, i);
      if (i > 0 && list.back().contains("branches") && chance(1, 2))
        list.push_back(again(d, fmt::format("{}layers[{}]", path, i - 1), at, list.back()));
      else if (branches && chance(1, 3))
        list.push_back(branched(d, at, position));
      else
        list.push_back(layer(d, at, position));
    }
    return list;
  }

  Json layer(Draw& d, const std::string& path, const Case* position) {
    Json json = Json::object();
    add(d, path + ".residual", json, "residual", Slot::residual);
    add_for(d, path + ".norm", json, "norm", Slot::norm);
    add_mixer(d, path + ".mixer", json, position);
    if (chance(1, 6)) add(d, path + ".depth", json, "depth", Slot::depth);
    if (chance(3, 4))
      add(d, path + ".ffn", json, "ffn", Slot::ffn);
    else
      json["ffn"] = nullptr;
    return json;
  }

  void add_mixer(Draw& d, const std::string& path, Json& json, const Case* position) {
    add_for(d, path, json, "mixer", Slot::mixer);
    const spec::Mechanism& mixer = *d.parts[path]->mechanism;
    // one scheme acts in one place: where it adds to the embedding, the mixers add none
    if (takes(mixer, "position") && chance(1, 2)) {
      json["mixer"]["position"] = acts_on_embedding(*position) ? Json("none") : position->part;
      if (!acts_on_embedding(*position)) d.parts[path + ".position"] = position;
    }
    if (takes(mixer, "pattern") && chance(1, 2)) {
      const Case* pattern = pick(Slot::pattern);
      json["mixer"]["pattern"] = pattern->part;
      d.parts[path + ".pattern"] = pattern;
    }
    if (json["mixer"].value("position", Json()).is_object() &&
        json["mixer"]["position"].value("type", "") == "rope" && chance(2, 3)) {
      const Case* scaling = pick(Slot::rope_scaling);
      json["mixer"]["position"]["scaling"] = scaling->part;
      d.parts[path + ".position.scaling"] = scaling;
    }
  }

  /// Branches that read the stream, the embedding and each other; those that do not join the stream
  /// are read by the next.
  Json branched(Draw& d, const std::string& path, const Case* position) {
    Json json = Json::object();
    add_for(d, path + ".norm", json, "norm", Slot::norm);
    const int64_t n = 2 + below(3);
    const bool shares = chance(1, 2);
    const std::string id = fmt::format("s{}", ids_++);
    std::vector<std::string> known = {"stream", "embedding"};
    std::string unread;
    for (int64_t i = 0; i < n; ++i) {
      const std::string at = fmt::format("{}.branches[{}]", path, i);
      Json branch = {{"name", fmt::format("b{}", i)}};
      read_names(branch, known, unread);
      unread.clear();
      const bool reads_stream = !branch.contains("inputs") && !branch.contains("add");
      if (i + 1 < n && chance(1, 2)) {
        branch["residual"] = nullptr;
        unread = branch["name"];
      } else if (reads_stream) {
        add(d, at + ".residual", branch, "residual", Slot::residual);
      } else {
        // those that read something else take one residual; others are refused
        const Case* residual = chance(7, 8) ? plain_residual() : pick(Slot::residual);
        branch["residual"] = residual->part;
        d.parts[at] = d.parts[at + ".residual"] = residual;
      }
      const bool mixes = chance(1, 2);
      const char* slot = mixes ? "mixer" : "ffn";
      if (mixes)
        add_mixer(d, at + ".mixer", branch, position);
      else
        add(d, at + ".ffn", branch, "ffn", Slot::ffn);
      // messages about adapters name the branch
      d.parts[fmt::format("{}.b{}", path, i)] = d.also[fmt::format("shared.{}.b{}", id, i)] =
          d.parts[fmt::format("{}.{}", at, slot)];
      if (shares && chance(2, 3)) branch["share"] = id;
      if (chance(1, 2))
        add_adapters(branch, mixes ? Slot::mixer : Slot::ffn, branch[slot],
                     static_cast<int64_t>(branch.value("inputs", Json::array({"stream"})).size()));
      known.push_back(branch["name"]);
      json["branches"].push_back(std::move(branch));
    }
    if (!shares && chance(1, 3)) json["share"] = id;
    // what streams leave for each other is said of the layer
    for (const auto& [at, part] : std::map(d.parts))
      if (at.starts_with(path + ".branches") && at.ends_with(".residual"))
        d.parts[path + ".residual"] = part;
    return json;
  }

  /// "inputs" and "add" of a branch: mostly one of the known names, and what nothing has read yet.
  void read_names(Json& branch, const std::vector<std::string>& known, const std::string& unread) {
    const auto any = [&] { return known[static_cast<size_t>(below(known.size()))]; };
    if (!unread.empty() && chance(1, 2)) {
      branch["add"] = Json::array({unread});
      if (chance(1, 3)) branch["inputs"] = Json::array({any()});
      return;
    }
    if (!unread.empty()) branch["inputs"] = Json::array({unread});
    if (chance(1, 3)) branch["inputs"].push_back(any());
    if (branch.contains("inputs") && branch["inputs"].size() == 1 && chance(1, 4))
      branch["add"] = Json::array({any()});
  }

  static const Case* plain_residual() {
    for (const Case* c : cases_of(Slot::residual))
      if (c->mechanism->name == "pre_norm") return c;
    fail(ErrorKind::internal, "composition", "no case of pre_norm");
  }

  /// Adapters of some products that the part has; now and then of one that it has not.
  void add_adapters(Json& branch, Slot slot, const Json& part, int64_t inputs) {
    spec::Scope scope;
    scope.d_model = kWidth;
    scope.d_in = kWidth * inputs;
    spec::ParamList list;
    try {
      spec::read_part(slot, part, scope).config->params(list, scope);
    } catch (const Error&) {
      return;  // refused with its part
    }
    std::vector<std::string> products;
    const std::string ending = ".weight";
    for (const spec::ParamDecl& decl : list.all())
      if (decl.kind == spec::ParamKind::matrix && decl.shape.size() == 2 &&
          decl.name.ends_with(ending))
        products.push_back(decl.name.substr(0, decl.name.size() - ending.size()));
    if (chance(1, 16)) products = {"nothing"};
    for (int64_t i = 0; i < 2 && !products.empty(); ++i) {
      const auto chosen = products.begin() + below(products.size());
      branch["adapters"].push_back({{"rank", 1 + below(3)}, {"of", Json::array({*chosen})}});
      products.erase(chosen);
    }
  }

  /// The layer before once more, with what its branches share and with adapters of other ranks.
  Json again(Draw& d, const std::string& before, const std::string& path, Json layer) {
    const std::map<std::string, const Case*> parts = d.parts;
    for (const auto& [at, part] : parts)
      if (at.starts_with(before + ".")) d.parts[path + at.substr(before.size())] = part;
    d.parts[path] = d.parts[before + ".b0"];  // what two uses disagree in is said of the layer
    if (layer.contains("share")) return layer;
    for (Json& branch : layer["branches"])
      if (branch.contains("adapters"))
        for (Json& adapter : branch["adapters"]) adapter["rank"] = 1 + below(3);
    return layer;
  }

  std::mt19937_64 random_;
  int64_t ids_ = 0;  // of what is shared
};

/// Whether calls of any length continue each other, as the parts' own cases declare.
bool splits_anywhere(const Draw& d) {
  return std::none_of(d.parts.begin(), d.parts.end(), [](const auto& entry) {
    return find_exception(entry.second->name, "same_bits") != nullptr ||
           entry.second->part.value("type", "") == "prefix";
  });
}

bool finite(const Tensor& x) {
  return x.isfinite().all().item<bool>();
}

void expect_trains(const Rig& rig, Report& report) {
  const Tensor loss = scalar_of(whole(rig, {random_ids(kTokens, 1), random_ids(6, 2)}));
  report.expect(finite(loss), "the output is not finite");
  loss.backward();
  for (const auto& [name, value] : rig.values)
    report.expect(!value.grad().defined() || finite(value.grad()), "the gradient of {} is not",
                  name);
}

void expect_comes_back(const Rig& rig, const Tensor& want, Report& report) {
  const test::TemporaryFolder folder;
  std::vector<format::TensorView> views;
  for (const auto& [decl, weight] : rig.model.weights().all())
    views.push_back(
        {decl.name,
         weight->dtype(),
         decl.shape,
         {static_cast<const std::byte*>(weight->data()), static_cast<size_t>(weight->bytes())},
         {}});
  convert::write_tessera_folder(model::resolve(rig.spec()), views, folder.path());
  const infer::LoadedModel loaded = infer::load_model(folder.path());
  const Rig again{{}, model::Model(loaded.source.spec, infer::weights_of(loaded.source))};
  report.expect(same_bits(whole(again, {random_ids(kTokens, 1)}), want),
                "the model is another one when read back from a file");
}

void expect_continues(const Rig& rig, const Tensor& want, bool splits, Report& report) {
  const std::string reason = rig.spec().no_state_reason();
  if (!reason.empty()) {
    report.refuses(ErrorKind::spec, reason, "a state", [&] { model::State(rig.spec(), 1); });
    return;
  }
  if (!rig.model.has_head() || !rig.spec().causal()) return;
  const Ids ids = random_ids(kTokens, 1);
  const auto calls = splits ? random_split(kTokens, 3) : std::vector<int64_t>{kTokens};
  model::State state(rig.spec(), 1);
  report.expect(same_bits(feed_split(rig, state, 0, ids, calls), want),
                "from a state the outputs differ by {:.3g}", [&] {
                  model::State other(rig.spec(), 1);
                  return difference(feed_split(rig, other, 0, ids, calls), want);
                }());
  if (rig.spec().encoder) return;  // its prompts are sources
  // greedy text with the state, and by computing everything anew for each token
  infer::GenerateOptions options;
  options.max_new_tokens = 4;
  const Ids with_state =
      infer::generate(rig.model, nullptr, {random_ids(5, 4)}, options).rows[0].token_ids;
  Ids all = random_ids(5, 4), anew;
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    nn::Batch batch = nn::Batch::of(Rows{all});
    batch.segments[0].prefix = 5;  // the prompt
    anew.push_back(whole(rig, batch)[-1].argmax().item<int64_t>());
    all.push_back(anew.back());
  }
  report.expect(with_state == anew, "text from a state {}; computed anew {}",
                fmt::join(with_state, " "), fmt::join(anew, " "));
}

constexpr int kShards = 16, kDrawsPerShard = 500;
constexpr int kLeastAccepted = 50;  // of a shard: fewer would show little

class Compositions : public testing::TestWithParam<int> {};

TEST_P(Compositions, RunOrAreRefusedWithAReason) {
  Drawer drawer(1000 + static_cast<uint64_t>(GetParam()));
  int accepted = 0;
  for (int i = 0; i < kDrawsPerShard; ++i) {
    const Draw d = drawer.draw();
    try {
      model::read_model_spec(d.json);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::spec) << e.what() << "\n" << d.json.dump(1);
      EXPECT_NE(d.refusing(e.what()), nullptr) << "no part is named: " << e.what() << "\n"
                                               << d.json.dump(1);
      continue;
    }
    Report report;
    try {
      const Rig rig = make_rig(d.json, at::kFloat);
      expect_trains(rig, report);
      const at::NoGradGuard no_gradients;
      const Tensor y = whole(rig, {random_ids(kTokens, 1)});
      report.expect(finite(y), "the kernels' output is not finite");
      expect_comes_back(rig, y, report);
      expect_continues(rig, y, splits_anywhere(d), report);
      ++accepted;
    } catch (const std::exception& e) {
      report.expect(false, "{}", e.what());
    }
    EXPECT_TRUE(report.ok()) << report.text() << d.json.dump();
  }
  EXPECT_GT(accepted, kLeastAccepted);
}

INSTANTIATE_TEST_SUITE_P(Drawn, Compositions, testing::Range(0, kShards));

/// The keys of branches in a spec that say what they read, share and adapt.
std::set<std::string> branch_keys(const Json& json) {
  std::set<std::string> keys;
  const auto take = [&](const Json& object) {
    for (const char* key : {"inputs", "add", "share", "adapters"})
      if (object.contains(key)) keys.insert(key);
  };
  for (const Json& layer : json.value("layers", Json::array())) {
    take(layer);
    for (const Json& branch : layer.value("branches", Json::array())) take(branch);
  }
  return keys;
}

/// A message without its place, names and numbers: why, and not what.
std::string reason_of(std::string message) {
  message.erase(0, message.find("] ") + 2);
  std::string reason;
  bool quoted = false;
  for (const char c : message) {
    if (c == '"') quoted = !quoted;
    if (!quoted && (std::isdigit(static_cast<unsigned char>(c)) == 0)) reason += c;
  }
  return reason;
}

TEST(CompositionsAsAWhole, NoPartIsRefusedMostOfTheTimeAndNoKeyAlways) {
  std::map<const spec::Mechanism*, int> drawn, refused;
  std::map<std::string, int> keys_drawn, keys_refused, reasons;
  for (int shard = 0; shard < kShards; ++shard) {
    Drawer drawer(1000 + static_cast<uint64_t>(shard));
    for (int i = 0; i < kDrawsPerShard; ++i) {
      const Draw d = drawer.draw();
      std::set<const spec::Mechanism*> present;
      for (const auto& [path, part] : d.parts) present.insert(part->mechanism);
      for (const spec::Mechanism* mechanism : present) ++drawn[mechanism];
      const std::set<std::string> keys = branch_keys(d.json);
      for (const std::string& key : keys) ++keys_drawn[key];
      const std::string error = test::error_of([&] { model::read_model_spec(d.json); });
      if (error.empty()) continue;
      for (const std::string& key : keys) ++keys_refused[key];
      if (!keys.empty()) ++reasons[reason_of(error)];
      if (const Case* part = d.refusing(error)) ++refused[part->mechanism];
    }
  }
  for (const spec::Mechanism& mechanism : spec::mechanisms()) {
    // what selects keys stands inside of attention, whose own samples have it
    if (mechanism.slot == spec::Slot::select) continue;
    EXPECT_GT(drawn[&mechanism], 10) << mechanism.name;
    EXPECT_LE(refused[&mechanism], 0.7 * drawn[&mechanism])
        << spec::name_of(mechanism.slot) << " " << mechanism.name << ": refused "
        << refused[&mechanism] << " of " << drawn[&mechanism];
  }
  for (const char* key : {"inputs", "add", "share", "adapters"}) {
    // mostly it is a part that is refused; what is read shows that the key works
    EXPECT_GT(keys_drawn[key], 1000) << key;
    EXPECT_LE(keys_refused[key], 0.9 * keys_drawn[key])
        << key << ": refused " << keys_refused[key] << " of " << keys_drawn[key];
  }
  // no reason stands for most of the refusals: the draws would then miss what else may be wrong
  int all = 0, most = 0;
  std::string commonest;
  for (const auto& [reason, count] : reasons) {
    all += count;
    if (count > most) most = count, commonest = reason;
  }
  EXPECT_LE(most, all / 2) << commonest << ": " << most << " of " << all;
}

// --- pairs
// ------------------------------------------------------------------------------------------

/// The first case of every mechanism of a slot: its plain config.
std::vector<const Case*> plain_cases(Slot slot) {
  std::vector<const Case*> out;
  for (const Case* c : cases_of(slot))
    if (out.empty() || out.back()->mechanism != c->mechanism) out.push_back(c);
  return out;
}

/// Why a spec is refused, without the place; "" when it is read.
std::string refusal(const Json& json) {
  const std::string text = test::error_of([&] { model::read_model_spec(json); });
  return text.empty() ? "" : text.substr(text.find("] ") + 2);
}

/// A table of which rows go with which columns, and the reasons of those that do not.
class PairTable {
 public:
  PairTable(std::string title, std::vector<std::string> columns)
      : title_(std::move(title)), columns_(std::move(columns)) {}
  void add_row(const std::string& name, const std::vector<std::string>& refusals) {
    std::string row = fmt::format("| `{}` |", name);
    for (size_t i = 0; i < refusals.size(); ++i) {
      if (refusals[i].empty()) {
        row += " yes |";
        continue;
      }
      const auto found = std::find(reasons_.begin(), reasons_.end(), refusals[i]);
      row += fmt::format(" {} |", found - reasons_.begin() + 1);
      if (found == reasons_.end()) reasons_.push_back(refusals[i]);
    }
    rows_ += row + "\n";
  }
  std::string text() const {
    std::string out = fmt::format("## {}\n\n| |", title_), line = "|---|";
    for (const std::string& column : columns_)
      out += fmt::format(" `{}` |", column), line += "---|";
    out += "\n" + line + "\n" + rows_ + "\n";
    for (size_t i = 0; i < reasons_.size(); ++i) out += fmt::format("{}. {}\n", i + 1, reasons_[i]);
    return out + (reasons_.empty() ? "" : "\n");
  }

 private:
  std::string title_, rows_;
  std::vector<std::string> columns_, reasons_;
};

std::vector<std::string> names(const std::vector<const Case*>& all) {
  std::vector<std::string> out;
  for (const Case* c : all) out.push_back(c->mechanism->name);
  return out;
}

/// The decoder of a mixer's case, or its encoder where it has no decoder.
Json host_of(const Case& c) {
  return host(*c.mechanism, c.part, c.encoder_only ? "encoder" : "decoder");
}

std::string composability_page() {
  std::string page =
      "# Compatibility of mechanisms\n\nGenerated by the contract suite "
      "(tests/contract/composition_test.cpp). "
      "A number is the reason why a pair is refused when a spec is read. Pairs of a position or a "
      "pattern are tried in every mixer that has a field for one.\n\n";
  const auto mixers = plain_cases(Slot::mixer), positions = plain_cases(Slot::position),
             patterns = plain_cases(Slot::pattern), residuals = plain_cases(Slot::residual);
  std::vector<const Case*> placing, shaping;
  for (const Case* c : mixers) {
    if (takes(*c->mechanism, "position")) placing.push_back(c);
    if (takes(*c->mechanism, "pattern")) shaping.push_back(c);
  }
  PairTable by_position("Positions in mixers", names(placing));
  for (const Case* position : positions) {
    std::vector<std::string> row;
    for (const Case* mixer : placing) {
      Json json = host_of(*mixer);
      if (acts_on_embedding(*position)) {
        json["embed"] = {{"type", "token"}, {"position", position->part}};
        json["mixer"]["position"] = "none";
      } else {
        json["mixer"]["position"] = position->part;
      }
      row.push_back(refusal(json));
    }
    by_position.add_row(position->mechanism->name, row);
  }
  PairTable by_mixer("Patterns in mixers", names(shaping));
  for (const Case* pattern : patterns) {
    std::vector<std::string> row;
    for (const Case* mixer : shaping) {
      Json json = host(*mixer->mechanism, mixer->part,
                       mixer->encoder_only || pattern->encoder_only ? "encoder" : "decoder");
      json["mixer"]["pattern"] = pattern->part;
      row.push_back(refusal(json));
    }
    by_mixer.add_row(pattern->mechanism->name, row);
  }
  PairTable by_pattern("Patterns and positions in attention", names(positions));
  for (const Case* pattern : patterns) {
    std::vector<std::string> row;
    for (const Case* position : positions) {
      Json json =
          host(*pattern->mechanism, pattern->part, pattern->encoder_only ? "encoder" : "decoder");
      if (acts_on_embedding(*position)) {
        json["embed"] = {{"type", "token"}, {"position", position->part}};
        json["mixer"]["position"] = "none";
      } else {
        json["mixer"]["position"] = position->part;
      }
      row.push_back(refusal(json));
    }
    by_pattern.add_row(pattern->mechanism->name, row);
  }
  PairTable by_shape("Mixers in architectures and residuals", [&] {
    std::vector<std::string> columns = {"decoder", "encoder", "continued from a state"};
    for (const std::string& name : names(residuals)) columns.push_back(name);
    return columns;
  }());
  for (const Case* mixer : mixers) {
    std::vector<std::string> row = {refusal(host(*mixer->mechanism, mixer->part, "decoder")),
                                    refusal(host(*mixer->mechanism, mixer->part, "encoder"))};
    row.push_back(row[0].empty() ? model::read_model_spec(host_of(*mixer)).no_state_reason()
                                 : row[0]);
    for (const Case* residual : residuals) {
      Json json = host_of(*mixer);
      json["residual"] = residual->part;
      row.push_back(refusal(json));
    }
    by_shape.add_row(mixer->mechanism->name, row);
  }
  PairTable by_router("Routers in architectures, and sliced (ffn chunked)",
                      {"decoder", "encoder", "continued from a state", "sliced"});
  for (const Case* router : plain_cases(Slot::router)) {
    const Json decoder = host(*router->mechanism, router->part, "decoder"),
               encoder = host(*router->mechanism, router->part, "encoder");
    Json sliced = router->encoder_only ? encoder : decoder;
    sliced["ffn"] = {{"type", "chunked"}, {"chunk", 3}, {"inner", sliced["ffn"]}};
    const std::string no_decoder = refusal(decoder);
    by_router.add_row(
        router->mechanism->name,
        {no_decoder, refusal(encoder),
         no_decoder.empty() ? model::read_model_spec(decoder).no_state_reason() : no_decoder,
         refusal(sliced)});
  }
  page +=
      by_position.text() + by_mixer.text() + by_pattern.text() + by_shape.text() + by_router.text();
  page.pop_back();
  return page;
}

TEST(CompositionsAsAWhole, TableOfPairsIsThatOfTheDocs) {
  const std::string page = composability_page();
  const std::filesystem::path path =
      std::string(TESSERA_SOURCE_DIR) + "/docs/mechanisms/composability.md";
  if (std::getenv("TESSERA_WRITE_GOLDEN") != nullptr) write_file_atomically(path, page);
  EXPECT_EQ(read_text_file(path), page) << "stale; TESSERA_WRITE_GOLDEN=1 writes it";
}

}  // namespace
}  // namespace tessera::contract::composition_test
