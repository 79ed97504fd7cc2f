#include "tessera/train/recipe/recipe.h"

#include <fmt/ranges.h>

#include "tessera/convert/checkpoint.h"
#include "tessera/convert/checkpoint_place.h"
#include "tessera/convert/experts.h"
#include "tessera/hub/find_model.h"
#include "tessera/model/call_plan.h"
#include "tessera/model/virtual_tokens.h"
#include "tessera/nn/embed/patches.h"
#include "tessera/nn/position/position_config.h"
#include "tessera/nn/registry.h"
#include "tessera/nn/router/router_config.h"
#include "tessera/spec/json_difference.h"
#include "tessera/spec/names.h"
#include "tessera/train/data/dataset.h"
#include "tessera/train/data/tasks.h"
#include "tessera/train/data/token_cache.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/recipe/aliases.h"
#include "tessera/train/recipe/start.h"
#include "tessera/train/recipe/task_head.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

/// The recipe's fields, except the spec, which is a document of its own, and unions.
struct Sections {
  TrainRecipe train;
  CheckpointRecipe checkpoint;
  std::optional<InitRecipe> init = {};
  std::optional<ExpertsRecipe> experts = {};
  std::optional<StopRecipe> stop = {};
  std::optional<WatchRecipe> watch = {};

  static constexpr auto fields() {
    using C = Sections;
    using spec::field;
    return std::tuple{
        field("train", &C::train, "length and shape of the run", {.required = true}),
        field("checkpoint", &C::checkpoint, "when to save"),
        field("init", &C::init, "a model to begin from; null = fresh values"),
        field("experts", &C::experts, "growing, pruning and balancing of experts; null = none"),
        field("stop", &C::stop, "early stopping; null = none"),
        field("watch", &C::watch, "warnings and measurements during training")};
  }
};

/// Of a key outside of its section: ` (did you mean "optimizer.lr"?)`, or "" where none has it.
std::string in_a_section(const std::string& key) {
  Json sections = spec::dump_struct(Sections());
  sections["optimizer"] = dump_optimizer({});
  sections["schedule"] = spec::dump_all_types<Schedule>();
  sections["data"] = spec::dump_struct(TextData());
  sections["adapter"] = spec::dump_all_types<AdapterRecipe>();
  sections["stop"] = spec::dump_struct(StopRecipe());
  std::vector<std::string> found;
  for (const auto& [name, section] : sections.items())
    if (section.is_object() && section.contains(key))
      found.push_back(fmt::format("\"{}.{}\"", name, key));
  return found.empty() ? "" : fmt::format(" (did you mean {}?)", fmt::join(found, " or "));
}

/// Throws Error(spec) for a key of a recipe that is no section.
void check_sections(const Json& json) {
  std::vector<std::string> known = {"spec",     "data",    "objective", "optimizer",
                                    "schedule", "adapter", "extends"};
  const Json sections = spec::dump_struct(Sections());
  for (const auto& [name, section] : sections.items()) known.push_back(name);
  for (const auto& [key, value] : json.items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      if (const std::string meant = in_a_section(key); !meant.empty())
        fail(ErrorKind::spec, "recipe", "unknown key \"{}\"{}; valid keys: {}", key, meant,
             fmt::join(known, ", "));
  spec::check_keys(json, known, "recipe");
}

Json read_commented(const fs::path& path) {
  spec::JsonLimits limits;
  limits.comments = true;
  return spec::read_json_file(path, limits);
}

fs::path under(const fs::path& folder, const std::string& path) {
  return fs::path(path).is_absolute() ? fs::path(path) : folder / path;
}

/// The location of a model or tokenizer: a path, or a name in the hub cache.
std::string model_under(const fs::path& folder, const std::string& text) {
  const fs::path path = under(folder, text).lexically_normal();
  return fs::exists(path) || !hub::is_cached(text) ? path.string() : hub::find_model(text).path;
}

void inline_spec(Json& json, const fs::path& folder) {
  if (json.is_object() && json.contains("spec") && json["spec"].is_string())
    json["spec"] = read_commented(under(folder, json["spec"].get<std::string>()));
}

/// Makes the paths of a recipe in `folder` independent of it.
void rebase(Json& json, const fs::path& folder) {
  inline_spec(json, folder);
  if (!json.is_object()) return;
  const auto move = [&](Json& path) {
    if (path.is_string())
      path =
          under(fs::current_path() / folder, path.get<std::string>()).lexically_normal().string();
  };
  const auto move_model = [&](Json& path) {
    if (path.is_string()) path = model_under(fs::current_path() / folder, path.get<std::string>());
  };
  if (json.contains("init") && json["init"].is_object() && json["init"].contains("from"))
    move_model(json["init"]["from"]);
  if (json.contains("objective")) for_each_objective_path(json["objective"], move_model);
  if (!json.contains("data") || !json["data"].is_object()) return;
  Json& data = json["data"];
  const auto move_files = [&](Json& of) {
    for (const char* key : {"train", "valid", "train_labels", "valid_labels"})
      if (of.is_object() && of.contains(key) && of[key].is_array())
        for (Json& path : of[key]) move(path);
  };
  move_files(data);
  if (data.contains("mix") && data["mix"].is_array())
    for (Json& part : data["mix"]) move_files(part);
  if (data.contains("tokenizer") && data["tokenizer"] != "bytes") move_model(data["tokenizer"]);
}

/// The recipe merged with everything that it extends, without the key "extends".
Json extended(Json json, const fs::path& folder, int depth = 0) {
  use_kept_names(json);
  if (!json.is_object() || !json.contains("extends")) return json;
  if (depth == 8) fail(ErrorKind::spec, "extends", "more than 8 recipes extend one another");
  if (!json["extends"].is_string())
    fail(ErrorKind::spec, "extends", "found {}; expected the path of a recipe",
         spec::kind_of(json["extends"]));
  const fs::path path = under(folder, json["extends"].get<std::string>());
  json.erase("extends");
  rebase(json, folder);
  Json base = extended(read_commented(path), path.parent_path(), depth + 1);
  if (!base.is_object())
    fail(ErrorKind::spec, "extends", "{}: found {}; expected an object", path.string(),
         spec::kind_of(base));
  rebase(base, path.parent_path());
  base.merge_patch(json);
  return base;
}

void ignore_keys_of_models(Json& json, const std::vector<std::string>& keys) {
  if (keys.empty() || !json.is_object()) return;
  int64_t models = 0;
  for (const auto& [section, names] : {std::pair{"init", "from"}, {"objective", "teacher"}}) {
    if (!json.contains(section) || !json[section].is_object() || !json[section].contains(names))
      continue;
    Json& all = json[section]["ignore_keys"];
    if (!all.is_array() && !all.is_null()) continue;  // refused later
    for (const std::string& key : keys) all.push_back(key);
    ++models;
  }
  if (models == 0)
    fail(ErrorKind::usage, "train",
         "--ignore-key {}: the recipe opens no model; expected init.from or objective.teacher",
         keys.front());
}

/// Settings that a recipe takes from its initial model: spec and tokenizer.
void take_from_model(Json& json, const fs::path& folder) {
  if (!json.is_object() || !json.contains("init") || json["init"].is_null()) return;
  // without a spec of its own the recipe uses the model's
  InitRecipe init;
  if (!json.contains("spec"))
    init = spec::read_struct<InitRecipe>(json["init"], spec::Scope().at("init"));
  if (!json["init"].is_object()) return;
  const auto from = json["init"].find("from");
  if (from == json["init"].end() || !from->is_string()) return;
  const fs::path model = model_under(folder, from->get<std::string>());
  if (!json.contains("spec")) {
    init.from = model.string();
    json["spec"] = load_start(init).spec_json;
  }
  const auto found = json.find("data");
  if (found == json.end()) return;
  Json& data = *found;
  if (!data.is_object() || data.contains("tokenizer")) return;
  if (data.contains("type") && data["type"] != "text") return;
  // a model of images or sounds has none
  const Json embed = json["spec"].is_object() ? json["spec"].value("embed", Json()) : Json();
  const Json type = embed.is_object() ? embed.value("type", Json()) : embed;
  if (type == "patches" || type == "frames") return;
  data["tokenizer"] = tokenizer_of_start(model);
}

/// Settings of a model that the data leave open; `sizes`: those of images too.
void take_settings(const infer::FeatureSettings& own, bool sizes, LabelData& data) {
  if (!data.input) data.input = own.kind;
  if (data.image.mean.empty()) data.image.mean = own.image.mean;
  if (data.image.std.empty()) data.image.std = own.image.std;
  if (sizes && data.image.height == 0) data.image.height = own.image.height;
  if (sizes && data.image.width == 0) data.image.width = own.image.width;
  if (data.audio.rate == 0) data.audio.rate = own.audio.rate;
  if (data.audio.mels == 0) data.audio.mels = own.audio.mels;
  if (data.audio.seconds == 0) data.audio.seconds = own.audio.seconds;
}

/// For a spec that reads images or sounds: completes their settings, from the initial model where
/// there is one, and train.length if all inputs have one size.
void take_features(Json& json, const fs::path& folder, Recipe& recipe) {
  auto* labels = std::get_if<LabelData>(&recipe.data.of);
  const auto* embed = dynamic_cast<const nn::FeatureEmbedConfig*>(recipe.spec.embed.config.get());
  const auto* patches = dynamic_cast<const nn::PatchesConfig*>(embed);
  if (labels == nullptr) return;
  if (embed == nullptr) {
    if (labels->input)
      fail(ErrorKind::spec, "data.input",
           "given for a spec that reads tokens; expected an embedding \"patches\" or \"frames\"");
    return;
  }
  labels->has_features = true;
  const Json init = json.value("init", Json());
  const Json from = init.is_object() ? init.value("from", Json()) : Json();
  if (from.is_string())
    if (const auto own = infer::read_feature_settings(
            convert::checkpoint_place(model_under(folder, from.get<std::string>()))))
      take_settings(*own, patches == nullptr || patches->height == 0, *labels);
  const infer::FeatureSettings settings = feature_settings(*labels, *embed);
  labels->input = settings.kind;
  labels->image = settings.image;
  labels->audio = settings.audio;
  const auto shape = settings.shape(*embed);
  const auto train = json.find("train");
  if (shape && train != json.end() && train->is_object() && !train->contains("length"))
    (*train)["length"] = embed->tokens(*shape);
}

/// Names the labels in the spec of a labelled objective, and gives a model's spec the required
/// head.
void take_task_head(Json& json, bool own_spec, Recipe& recipe) {
  TaskHead made = with_task_head(std::move(json["spec"]), json["objective"], /*replace=*/!own_spec);
  json["spec"] = std::move(made.spec);
  if (made.note.empty()) return;
  recipe.notes.push_back(made.note);
  json["init"]["partial"] = true;
}

/// Reads the optimizer from `json`; one that needs no schedule gets none by default.
void take_optimizer(Json& json, Recipe& recipe) {
  if (const auto found = json.find("optimizer"); found != json.end())
    recipe.optimizer = read_optimizer(*found, spec::Scope().at("optimizer"));
  json.erase("optimizer");
  if (!std::holds_alternative<ScheduleFreeKeys>(recipe.optimizer.rule)) return;
  Json& schedule = json["schedule"];
  if (schedule.is_null()) schedule = Json::object();
  if (schedule.is_object() && !schedule.contains("type")) schedule["type"] = "constant";
}

void take_schedule(Json& json, Recipe& recipe) {
  if (const auto found = json.find("schedule"); found != json.end())
    recipe.schedule = spec::read_union<Schedule>(*found, spec::Scope().at("schedule"));
  json.erase("schedule");
}

void take_adapter(Json& json, Recipe& recipe) {
  if (const auto found = json.find("adapter"); found != json.end() && !found->is_null())
    recipe.adapter = spec::read_union<AdapterRecipe>(*found, spec::Scope().at("adapter"));
  json.erase("adapter");
}

/// Makes the paths of a recipe in `folder` independent of it.
void place_data(const fs::path& folder, DataRecipe& data) {
  const auto place = [&](std::vector<std::string>& files) {
    for (std::string& file : files) file = under(folder, file).lexically_normal().string();
  };
  const auto place_tokenizer = [&](std::string& tokenizer) {
    if (tokenizer != "bytes") tokenizer = model_under(folder, tokenizer);
  };
  if (auto* text = std::get_if<TextData>(&data.of)) {
    for (auto* files : {&text->train, &text->valid}) place(*files);
    for (DataPart& part : text->mix)
      for (auto* files : {&part.train, &part.valid}) place(*files);
    place_tokenizer(text->tokenizer);
  }
  if (auto* labels = std::get_if<LabelData>(&data.of)) {
    for (auto* files :
         {&labels->train, &labels->valid, &labels->train_labels, &labels->valid_labels})
      place(*files);
    place_tokenizer(labels->tokenizer);
  }
}

/// Adding and removing experts needs optimizer states that are separate by expert.
void check_states(const OptimizerRecipe& optimizer) {
  const auto check = [](const RuleKeys& rule, const std::string& where) {
    const std::string what = spec::type_of(rule);
    bool apart = what != "adafactor" && what != "soap" && what != "shampoo";
    if (const auto* adam = std::get_if<AdamKeys>(&rule);
        adam != nullptr && adam->moments == MomentStorage::int8)
      apart = false;
    if (const auto* adamw = std::get_if<AdamWKeys>(&rule);
        adamw != nullptr && adamw->moments == MomentStorage::int8)
      apart = false;
    if (!apart)
      fail(ErrorKind::spec, where,
           "\"{}\" keeps states that belong to several experts, and some come or go; expected "
           "adamw, adam, lion, sgd, muon or schedule_free_adamw with moments \"float32\"",
           what);
  };
  check(optimizer.rule, "optimizer.type");
  for (size_t i = 0; i < optimizer.groups.size(); ++i)
    if (optimizer.groups[i].optimizer)
      check(optimizer.groups[i].optimizer->keys, fmt::format("optimizer.groups[{}].optimizer", i));
}

/// Throws Error(spec) for routers that learn from token losses that do not reach them: those of an
/// encoder, of predictors, of layers that choose among tokens.
void check_rewards(const model::ModelSpec& stack, std::string_view why) {
  const auto refuse = [](const spec::AnyPart& part, std::string_view reason) {
    spec::for_each_part(part, [&](const spec::AnyPart& inner) {
      const auto* router = dynamic_cast<const nn::RouterConfig*>(inner.config.get());
      if (router != nullptr && router->by_reward())
        fail(
            ErrorKind::spec, "spec",
            "router \"{}\" learns from the losses of its tokens, {}; expected another router there",
            inner.type(), reason);
    });
  };
  for (const model::LayerSpec& layer : stack.layers)
    for (const model::GroupSpec& group : layer.groups)
      for (const model::BranchSpec& branch : group.branches) {
        if (!why.empty()) refuse(branch.part, why);
        if (layer.depth)
          refuse(branch.part, fmt::format("and depth \"{}\" takes them apart", layer.depth.type()));
      }
}

void check_model(const Recipe& recipe) {
  const int64_t length = recipe.train.length;
  if (!recipe.spec.encoder && recipe.data.has_sources() &&
      !model::CallPlan(recipe.spec).reads_given())
    fail(ErrorKind::spec, "data.source_key",
         "given for a \"{}\" without a prefix, which reads no source; expected arch "
         "\"encoder_decoder\", or attention with pattern \"prefix\"",
         name_of(recipe.spec.arch));
  if (recipe.spec.encoder)
    if (const int64_t limit = recipe.spec.encoder->max_positions(); limit > 0 && length > limit)
      fail(ErrorKind::spec, "train.length", "{} tokens; the encoder has {} positions", length,
           limit);
  if (const int64_t limit = recipe.spec.max_positions(); limit > 0 && length > limit)
    fail(ErrorKind::spec, "train.length", "{} tokens; the spec has {} positions", length, limit);
  else if (limit > 0 && recipe.data.task() != nullptr)
    if (const int64_t longest = keys_of_task(*recipe.data.task()).valid_length; longest > limit)
      fail(ErrorKind::spec, "data.valid_length", "{} tokens; the spec has {} positions", longest,
           limit);
  check_rewards(recipe.spec, "");
  if (recipe.spec.encoder)
    check_rewards(*recipe.spec.encoder, "and what an encoder reads has none");
  for (const model::PredictorSpec& predictor : recipe.spec.predictors)
    check_rewards(*predictor.stack, "which those of a predictor do not reach");
  if (recipe.train.early_exit.scale > 0) {
    if (recipe.spec.encoder)
      fail(ErrorKind::spec, "train.early_exit",
           "not available with an encoder: expected a \"decoder\", or scale 0");
    for (int64_t layers = 1; layers <= std::ssize(recipe.spec.layers); ++layers)
      if (const std::string reason = recipe.spec.no_exit_reason(layers); !reason.empty())
        fail(ErrorKind::spec, "train.early_exit", "{}; expected scale 0", reason);
  }
  if (recipe.train.batch > kMaxTokens / length)
    fail(ErrorKind::spec, "train.batch", "{} sequences of {} tokens; expected at most {} tokens",
         recipe.train.batch, length, kMaxTokens);
}

/// True for parts with a router.
bool routes(const Json& type) {
  if (!type.is_string()) return false;
  for (const spec::Slot slot : {spec::Slot::ffn, spec::Slot::mixer})
    if (const auto* mechanism = spec::find_mechanism(slot, type.get<std::string>()))
      for (const spec::FieldDoc& field : mechanism->fields())
        if (field.name == "router") return true;
  return false;
}

/// True if a router without loss settings needs a balance loss; unreadable specs get their own
/// error later.
bool wants_balance(const Json& router) {
  if (!router.is_object() || router.contains("losses")) return false;
  spec::Scope any;
  any.n_experts = int64_t{1} << 20;
  try {
    const spec::AnyPart part = spec::read_part(spec::Slot::router, router, any);
    return part && part.as<nn::RouterConfig>().wants_balance();
  } catch (const Error&) {
    return false;
  }
}

/// Gives such routers of a spec a balance loss; returns their number.
int64_t balance_routers(Json& json) {
  int64_t n = 0;
  if (json.is_array())
    for (Json& one : json) n += balance_routers(one);
  if (!json.is_object()) return n;
  for (auto& [key, value] : json.items()) n += balance_routers(value);
  if (!routes(json.value("type", Json()))) return n;
  Json router = json.value("router", Json("top_k"));
  if (router.is_string()) router = {{"type", router}};
  if (!wants_balance(router)) return n;
  router["losses"] = {{"balance", "per_choice_mean"}};
  json["router"] = std::move(router);
  return n + 1;
}

void check_curriculum(const Recipe& recipe) {
  const Curriculum& how = recipe.train.curriculum;
  if (how.steps == 0) return;
  if (how.from > recipe.train.length)
    fail(ErrorKind::spec, "train.curriculum.from", "found {}; expected at most train.length = {}",
         how.from, recipe.train.length);
  if (recipe.data.task() != nullptr)
    fail(ErrorKind::spec, "train.curriculum",
         "examples of a task have the length that they are made with; expected steps 0");
  if (recipe.train.windows == WindowOrder::carried)
    fail(ErrorKind::spec, "train.curriculum",
         "\"carried\" windows are consecutive and have one length; expected steps 0, or "
         "\"isolated\"");
}

/// Checks the requirements of carried windows.
void check_carried(const Recipe& recipe) {
  const TrainRecipe& train = recipe.train;
  if (train.windows != WindowOrder::carried) {
    if (train.carry_limit > 0)
      fail(ErrorKind::spec, "train.carry_limit",
           "has no meaning for windows \"isolated\"; only \"carried\" has it");
    return;
  }
  constexpr const char* kWhere = "train.windows";
  if (const TextData* text = recipe.data.text(); text != nullptr && !text->mix.empty())
    fail(ErrorKind::spec, kWhere,
         "\"carried\" reads on in one text, but data.mix has several; use \"isolated\"");
  if (recipe.data.task() != nullptr)
    fail(ErrorKind::spec, kWhere, "examples of a task are independent; use \"isolated\"");
  if (recipe.data.has_sources())
    fail(ErrorKind::spec, kWhere,
         "\"carried\" continues documents, but pairs are independent; use \"isolated\"");
  if (train.recompute.of != nn::RecomputeOf::none)
    fail(ErrorKind::spec, "train.recompute",
         "\"carried\" rows continue from a state, which recomputation would advance twice; use "
         "\"isolated\", or recompute nothing");
  if (!recipe.spec.predictors.empty() && train.predictors > 0)
    fail(ErrorKind::spec, "train.predictors",
         "{} of them, and \"carried\" rows whose state they do not share; use \"isolated\", or a "
         "factor of 0",
         recipe.spec.predictors.size());
  const model::CallPlan calls(recipe.spec);
  if (const std::string& reason = calls.whole_reason(); !reason.empty())
    fail(ErrorKind::spec, kWhere, "\"carried\" needs a state, but {}; use \"isolated\"", reason);
  if (const int64_t prefix = model::CallPlan(recipe.spec).first_call(0); prefix > 0)
    fail(ErrorKind::spec, kWhere,
         "\"carried\" cuts documents anywhere, but the first {} tokens of each see each other and "
         "are read in one call; use \"isolated\", or pattern \"prefix\" with length 0",
         prefix);
  const auto layout = model::state_layout(recipe.spec);
  if (layout.empty())
    fail(ErrorKind::spec, kWhere, "no part of this spec has a state to carry; use \"isolated\"");
  if (train.carry_limit > 0 && train.carry_limit < train.length)
    fail(ErrorKind::spec, "train.carry_limit", "found {}; expected at least train.length = {}",
         train.carry_limit, train.length);
  if (const int64_t limit = calls.longest_in_cuts();
      limit > 0 && (train.carry_limit == 0 || train.carry_limit > limit))
    fail(ErrorKind::spec, "train.carry_limit",
         "found {}; expected 1 to {}: rows continue through a document, and this spec has no "
         "further positions",
         train.carry_limit, limit);
  for (const model::LayerSpec& layer : recipe.spec.layers)
    if (layer.depth)
      fail(
          ErrorKind::spec, kWhere,
          "\"carried\" with layers that choose among the tokens of whole documents (depth \"{}\"); "
          "use \"isolated\"",
          layer.depth.type());
  for (const model::BranchState& branch : layout)
    for (const spec::StateDecl& decl : branch.tensors)
      if (train.carry_limit == 0 && decl.kind == spec::StateDecl::Kind::per_token && decl.keep == 0)
        fail(ErrorKind::spec, "train.carry_limit",
             "missing: {} keeps every token of a document; give the tokens after which a row "
             "restarts, or that part a window",
             branch.name);
}

/// Checks the requirements of adding and removing experts.
void check_experts(const Recipe& recipe) {
  if (!recipe.experts) return;
  if (recipe.experts->balance_steps > 0) {
    const std::vector<spec::ParamDecl> all = model::parameters(recipe.spec);
    if (std::none_of(all.begin(), all.end(),
                     [](const spec::ParamDecl& decl) { return static_cast<bool>(decl.rule); }))
      fail(ErrorKind::spec, "experts.balance_steps",
           "found {}, but no router has a balancing bias; expected \"balance\": true of a top_k",
           recipe.experts->balance_steps);
  }
  if (!recipe.experts->changes()) return;
  const std::map<std::string, convert::Mixture> mixtures = convert::mixtures(recipe.spec);
  if (mixtures.empty())
    fail(ErrorKind::spec, "experts", "no mixture of experts in the layers of this spec");
  for (const auto& [name, mixture] : mixtures)
    if (!mixture.reason.empty()) fail(ErrorKind::spec, "experts", "{}: {}", name, mixture.reason);
  int64_t before = 0;
  for (size_t i = 0; i < recipe.experts->grow.size(); ++i) {
    const GrowRecipe& grow = recipe.experts->grow[i];
    const std::string where = fmt::format("experts.grow[{}]", i);
    if (grow.at <= before || grow.at >= recipe.train.steps)
      fail(ErrorKind::spec, where + ".at",
           "found {}; expected {} to {}: after the one before, and before the last of the run",
           grow.at, before + 1, recipe.train.steps - 1);
    if (grow.k > grow.to)
      fail(ErrorKind::spec, where + ".k", "found {} of {} experts", grow.k, grow.to);
    for (const auto& [name, mixture] : mixtures)
      if (grow.k > 0 && mixture.k == 0)
        fail(ErrorKind::spec, where + ".k", "{} has no number of choices; leave it out", name);
    before = grow.at;
  }
}

/// Checks the requirements of an adapter: a complete, frozen base model.
void check_adapter(const Recipe& recipe) {
  if (!recipe.adapter) return;
  if (!recipe.init)
    fail(ErrorKind::spec, "adapter",
         "given without \"init\"; expected \"init\": {{\"from\": MODEL}}, the base model");
  // labels need a head, which is trained in full with the adapter
  if (recipe.init->partial && recipe.data.labels() == nullptr)
    fail(ErrorKind::spec, "init.partial",
         "true with an adapter, whose base model is frozen; expected false");
  if (const auto* keys = adapter_keys<VirtualTokenKeys>(*recipe.adapter)) {
    const bool prefix = std::holds_alternative<PrefixAdapter>(*recipe.adapter);
    if (const std::string reason = model::no_virtual_reason(recipe.spec, prefix); !reason.empty())
      fail(ErrorKind::spec, "adapter.type", "\"{}\": {}", spec::type_of(*recipe.adapter), reason);
    if (recipe.train.windows == WindowOrder::carried)
      fail(ErrorKind::spec, "train.windows",
           "\"carried\" rows continue from a state, and virtual tokens precede whole documents; "
           "use \"isolated\"");
    if (recipe.train.early_exit.scale > 0)
      fail(ErrorKind::spec, "train.early_exit",
           "not available with virtual tokens; expected "
           "scale 0");
    if (const int64_t limit = recipe.spec.max_positions();
        limit > 0 && recipe.train.length + keys->tokens > limit)
      fail(ErrorKind::spec, "adapter.tokens",
           "{} virtual tokens and train.length = {}; the spec has {} positions", keys->tokens,
           recipe.train.length, limit);
  }
  if (recipe.experts && recipe.experts->changes())
    fail(ErrorKind::spec, "experts",
         "growing or pruning with an adapter, whose base model is frozen; expected one of the two");
}

/// Early stopping and best checkpoints need evaluations.
void check_watched(const Recipe& recipe) {
  const auto needs_evaluations = [&](const std::string& where, bool given) {
    if (!given) return;
    if (recipe.train.eval_every == 0)
      fail(ErrorKind::spec, where,
           "given without train.eval_every, so that nothing is evaluated on the way; expected "
           "steps between evaluations there");
    if (!recipe.data.has_valid())
      fail(ErrorKind::spec, where,
           "given without validation data; expected data.valid or data.valid_fraction");
  };
  if (recipe.stop) needs_evaluations("stop.patience", recipe.stop->patience > 0);
  if (recipe.stop) needs_evaluations("stop.reach", recipe.stop->reach.has_value());
  needs_evaluations("checkpoint.best", recipe.checkpoint.best > 0);
  if (recipe.watch && recipe.watch->noise_scale > 0 && recipe.train.accumulate < 2)
    fail(ErrorKind::spec, "watch.noise_scale",
         "given with train.accumulate = 1: it compares gradients of micro-batches with that of the "
         "update; expected 2 or more parts, such as train.batch = {} and train.accumulate = 2",
         std::max<int64_t>(1, recipe.train.batch / 2));
}

/// Throws Error(spec) if the optimizer needs another schedule.
void check_rate(const OptimizerRecipe& optimizer, const Schedule& schedule) {
  if (std::holds_alternative<ScheduleFreeKeys>(optimizer.rule) &&
      !std::holds_alternative<ConstantSchedule>(schedule))
    fail(ErrorKind::spec, "schedule.type",
         "found \"{}\" with optimizer \"schedule_free_adamw\", whose average replaces a decaying "
         "rate; expected \"constant\"",
         spec::type_of(schedule));
}

/// Keys that may differ between two configurations of the same run.
bool is_free(const std::string& path, bool constant_schedule) {
  if (path == "train.steps") return constant_schedule;
  for (const char* key :
       {"train.threads", "train.deterministic", "train.eval_every", "train.eval_batches",
        "train.log_every", "checkpoint", "stop", "watch", "data.train", "data.valid",
        "data.train_labels", "data.valid_labels", "init.ignore_keys", "objective.ignore_keys"})
    if (path == key) return true;
  return path.starts_with("data.mix[") && (path.ends_with(".train") || path.ends_with(".valid"));
}

}  // namespace

Recipe read_recipe(Json json,
                   const fs::path& folder,
                   const std::vector<std::string>& overrides,
                   const std::vector<std::string>& ignore_keys) {
  nn::register_mechanisms();
  json = extended(std::move(json), folder);
  // overrides of the spec are applied once it is known, from `init`, which other overrides may set
  const auto changes_a_spec = [](const std::string& assignment) {
    return assignment.starts_with("spec.") || assignment.starts_with("spec[");
  };
  for (const std::string& assignment : overrides)
    if (!changes_a_spec(assignment)) {
      model::apply_override(json, assignment);
      use_kept_names(json, /*overrides=*/true);
    }
  ignore_keys_of_models(json, ignore_keys);
  const bool own_spec = json.is_object() && json.contains("spec");
  inline_spec(json, folder);
  Json written = json;
  take_from_model(json, folder);
  for (const std::string& assignment : overrides) {
    if (!changes_a_spec(assignment)) continue;
    model::apply_override(json, assignment);
    if (own_spec)
      model::apply_override(written, assignment);
    else
      written["set"].push_back(assignment);
  }
  if (!json.is_object())
    fail(ErrorKind::spec, "recipe", "found {}; expected an object", spec::kind_of(json));
  check_sections(json);
  if (!json.contains("spec"))
    fail(ErrorKind::spec, "recipe",
         "\"spec\" is missing; expected a path or an object (the architecture), or \"init\" with a "
         "model to begin from");

  Recipe recipe;
  recipe.written = std::move(written);
  const bool labelled = learns_from_labels(json.value("objective", Json()));
  if (labelled) take_task_head(json, own_spec, recipe);
  if (const int64_t routers = balance_routers(json["spec"]); routers > 0)
    recipe.notes.push_back(fmt::format(
        "{} router{} without \"losses\" learn{} with \"balance\": \"per_choice_mean\"; \"none\" "
        "leaves it out",
        routers, routers == 1 ? "" : "s", routers == 1 ? "s" : ""));
  recipe.spec = model::read_model_spec(json["spec"]);
  json.erase("spec");
  if (!json.contains("data"))
    fail(ErrorKind::spec, "recipe", "\"data\" is missing; expected files to learn from, or a task");
  recipe.data = read_data(json["data"], labelled);
  json.erase("data");
  take_features(json, folder, recipe);
  Json objective = json.value("objective", Json());
  for_each_objective_path(objective,
                          [&](Json& path) { path = model_under(folder, path.get<std::string>()); });
  recipe.objective = read_objective(objective, recipe.spec, recipe.data);
  json.erase("objective");
  take_optimizer(json, recipe);
  take_schedule(json, recipe);
  take_adapter(json, recipe);
  auto sections = spec::read_struct<Sections>(json, {});
  recipe.train = sections.train;
  recipe.checkpoint = sections.checkpoint;
  recipe.stop = std::move(sections.stop);
  recipe.watch = sections.watch;
  recipe.init = std::move(sections.init);
  if (recipe.init) recipe.init->from = model_under(folder, recipe.init->from);

  place_data(folder, recipe.data);
  if (recipe.data.task() != nullptr)
    for (const auto& [path, length] :
         {std::pair("train.length", recipe.train.length),
          std::pair("data.valid_length", keys_of_task(*recipe.data.task()).valid_length)})
      if (length > 0) check_task(*recipe.data.task(), recipe.spec.vocab, length, path);
  check_data(recipe.data);
  if (const std::string note = fit_schedule(recipe.schedule, recipe.train.steps, "schedule");
      !note.empty())
    recipe.notes.push_back(note);
  check_schedule(recipe.schedule, recipe.train.steps, "schedule");
  recipe.experts = std::move(sections.experts);
  recipe.objective->check(recipe.model_plan());
  check_model(recipe);
  check_adapter(recipe);
  check_carried(recipe);
  check_curriculum(recipe);
  check_experts(recipe);
  if (recipe.experts && recipe.experts->changes()) check_states(recipe.optimizer);
  check_rate(recipe.optimizer, recipe.schedule);
  check_watched(recipe);
  return recipe;
}

Recipe load_recipe(const fs::path& path,
                   const std::vector<std::string>& overrides,
                   const std::vector<std::string>& ignore_keys) {
  return read_recipe(read_commented(path), path.parent_path(), overrides, ignore_keys);
}

std::unique_ptr<Dataset> open_source(const Recipe& recipe,
                                     const std::filesystem::path& cache,
                                     const CancelToken* cancel) {
  return recipe.objective->open(recipe.data_plan(), cache, cancel);
}

Json merged_recipe(const fs::path& path) {
  return extended(Json{{"extends", fs::absolute(path).string()}}, "");
}

Json resolve(const Recipe& recipe) {
  Json json = Json::object();
  json["spec"] = model::resolve(recipe.spec);
  json["data"] = dump_data(recipe.data);
  json["train"] = spec::dump_struct(recipe.train);
  if (recipe.train.curriculum.steps == 0) json["train"].erase("curriculum");
  json["optimizer"] = dump_optimizer(recipe.optimizer);
  // absent if empty, as in recipes of checkpoints without these keys
  if (recipe.init) json["init"] = spec::dump_struct(*recipe.init);
  if (Json objective = recipe.objective->dump(); !objective.is_null())
    json["objective"] = std::move(objective);
  if (recipe.adapter) json["adapter"] = spec::dump_union(*recipe.adapter);
  if (recipe.experts) json["experts"] = spec::dump_struct(*recipe.experts);
  json["schedule"] = spec::dump_union(recipe.schedule);
  if (json["schedule"].value("cycles", 0) == 1) json["schedule"].erase("cycles");
  json["schedule"].erase("warmup_fraction");  // warmup has it in steps
  json["checkpoint"] = spec::dump_struct(recipe.checkpoint);
  if (recipe.stop) json["stop"] = spec::dump_struct(*recipe.stop);
  if (recipe.watch) json["watch"] = spec::dump_struct(*recipe.watch);
  return json;
}

Json with_present_defaults(const Json& stored) {
  try {
    return resolve(read_recipe(stored, ""));
  } catch (const Error&) {
    return stored;
  }
}

std::string differing_key(const Json& before, const Json& now) {
  const auto constant = [](const Json& json) {
    // `before` is from a file
    const Json::json_pointer type("/schedule/type");
    return json.contains(type) && json[type] == "constant";
  };
  const bool both = constant(before) && constant(now);
  const auto found = spec::first_difference(
      before, now, [&](const std::string& path) { return is_free(path, both); });
  if (!found) return "";
  return found->path.empty() ? "recipe" : found->path;
}

Json recipe_schema() {
  Json schema = spec::struct_schema<Sections>();
  schema["properties"]["spec"] = {
      {"description", "the architecture: a path, or the object itself; optional with init"}};
  Json data = spec::type_schemas<TypedData>();
  data.push_back(spec::struct_schema<LabelData>());
  schema["properties"]["data"] = {
      {"description", "files to learn from, a task whose examples are made, or labelled examples"},
      {"anyOf", std::move(data)}};
  schema["properties"]["objective"] = objective_schema();
  schema["properties"]["optimizer"] = optimizer_schema();
  schema["properties"]["schedule"] = spec::union_schema<Schedule>("learning rate over the run");
  schema["properties"]["adapter"] = spec::union_schema<AdapterRecipe>(
      "adapter (LoRA, ...) to train, with the model frozen; null = train the model");
  schema["properties"]["extends"] = {
      {"type", "string"}, {"description", "base recipe, for all keys that this one lacks"}};
  schema["required"].push_back("data");
  return schema;
}

}  // namespace tessera::train
