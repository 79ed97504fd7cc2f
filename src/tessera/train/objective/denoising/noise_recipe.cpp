#include "tessera/train/objective/denoising/noise_recipe.h"

#include <algorithm>

#include <fmt/ranges.h>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/model/call_plan.h"
#include "tessera/spec/names.h"
#include "tessera/text/tokenizer/vocabularies.h"
#include "tessera/train/objective/denoising/denoising.h"
#include "tessera/train/objective/denoising/fill_in_middle.h"
#include "tessera/train/objective/denoising/span_corruption.h"

namespace tessera::train {

enum class MiddleCut { characters, tokens };
enum class MiddleLoss { all, middle };
enum class MiddleUnit { window, document };

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::MiddleCut> {
  using E = tessera::train::MiddleCut;
  static constexpr std::array names{std::pair{E::characters, "characters"},
                                    std::pair{E::tokens, "tokens"}};
};

template <>
struct tessera::spec::EnumNames<tessera::train::MiddleLoss> {
  using E = tessera::train::MiddleLoss;
  static constexpr std::array names{std::pair{E::all, "all"}, std::pair{E::middle, "middle"}};
};

template <>
struct tessera::spec::EnumNames<tessera::train::MiddleUnit> {
  using E = tessera::train::MiddleUnit;
  static constexpr std::array names{std::pair{E::window, "window"},
                                    std::pair{E::document, "document"}};
};

namespace tessera::train {
namespace {

using spec::field;
using spec::Json;

std::string sentinel(size_t number) {
  return fmt::format(fmt::runtime(text::known_tokens().sentinel), number);
}

int64_t id_in(const TokenName& token, const NoiseScope& scope, const char* key) {
  return id_of(token, scope.tokenizer, scope.spec.vocab, fmt::format("{}.{}", scope.where, key));
}

std::optional<int64_t> id_in(const std::optional<TokenName>& token,
                             const NoiseScope& scope,
                             const char* key) {
  if (!token) return std::nullopt;
  return id_in(*token, scope, key);
}

/// The end token of input and target: without it generation would never end.
int64_t end_in(const std::optional<TokenName>& eos, const NoiseScope& scope) {
  if (eos) return id_in(*eos, scope, "eos");
  if (scope.separator) return *scope.separator;
  if (const auto id = scope.tokenizer.eos()) return *id;
  fail(ErrorKind::spec, scope.where + ".eos",
       "missing, and the tokenizer has no end of text; expected a token, or an id, which may "
       "exceed the tokenizer's {}",
       scope.tokenizer.vocab_size());
}

/// Checks that input tokens can attend to each other.
void check_reader(const NoiseScope& scope, std::string_view type) {
  if (scope.spec.encoder) return;
  if (scope.spec.arch != model::Arch::decoder || !model::CallPlan(scope.spec).reads_given())
    fail(ErrorKind::spec, scope.where + ".type",
         "\"{}\" with a \"{}\" that reads no prefix; expected arch \"encoder_decoder\", or a "
         "\"decoder\" whose attention has the pattern \"prefix\"",
         type, name_of(scope.spec.arch));
}

/// Missing requirements of an objective, each with its remedy; several are reported at once.
class Lacks {
 public:
  Lacks(const NoiseScope& scope, std::string_view type)
      : scope_(scope), type_(type), next_(scope.tokenizer.vocab_size()) {}

  /// A token given at a key, or of the tokenizer.
  void token(const char* key, const std::optional<TokenName>& given, bool known) {
    if (given || known) return;
    what_.push_back(
        fmt::format("a token \"{}\": write {}.{} = {}", key, scope_.where, key, next_++));
  }
  void end(const std::optional<TokenName>& eos) {
    token("eos", eos, scope_.separator.has_value() || scope_.tokenizer.eos().has_value());
  }
  /// Input tokens that attend to each other.
  void reader() {
    if (scope_.spec.encoder ||
        (scope_.spec.arch == model::Arch::decoder && model::CallPlan(scope_.spec).reads_given()))
      return;
    what_.emplace_back(
        "a reader of the prefix: write \"pattern\": \"prefix\" at the attention of a decoder, or "
        "arch "
        "\"encoder_decoder\"");
  }
  bool any() const { return !what_.empty(); }
  /// `count` further ids. Throws Error(spec) if more than one requirement is missing.
  void check(int64_t ids = 0) {
    if (const int64_t vocab = next_ + ids; vocab > scope_.spec.vocab && any())
      what_.push_back(fmt::format("ids beyond the tokenizer's {}: write spec.vocab = {} (found {})",
                                  scope_.tokenizer.vocab_size(), vocab, scope_.spec.vocab));
    if (what_.size() > 1)
      fail(ErrorKind::spec, scope_.where, "\"{}\" lacks {} things: {}", type_, what_.size(),
           fmt::join(what_, "; "));
  }

 private:
  const NoiseScope& scope_;
  std::string_view type_;
  int64_t next_;  // the first unused id
  std::vector<std::string> what_;
};

void check_decoder(const NoiseScope& scope, std::string_view type) {
  if (scope.spec.arch != model::Arch::decoder || scope.spec.encoder)
    fail(ErrorKind::spec, scope.where + ".type", "\"{}\" with arch \"{}\"; expected \"decoder\"",
         type, name_of(scope.spec.arch));
}

struct SpanRecipe {
  static constexpr const char* kType = "span_corruption";
  double rate = 0.15;
  double mean_span = 3;
  std::optional<TokenName> mode = {};
  std::optional<TokenName> eos = {};
  std::optional<std::vector<TokenName>> sentinels = {};

  static constexpr auto fields() {
    using C = SpanRecipe;
    return std::tuple{
        field("rate", &C::rate, "share of the tokens to mask", {.above = 0, .below = 1}),
        field("mean_span", &C::mean_span, "mean span length, tokens", {.min = 1}),
        field("mode", &C::mode, "mode token in front of the input; null = none"),
        field("eos", &C::eos, "end token of input and target; null = the tokenizer's end of text"),
        field("sentinels", &C::sentinels,
              "sentinel tokens of the spans, in order; null = <extra_id_0>, ..., or without these "
              "the "
              "last ids of the vocabulary downwards, without the tokenizer's")};
  }

  std::vector<int64_t> named(const NoiseScope& scope) const {
    check_lacks(scope);
    std::vector<int64_t> out{end_in(eos, scope)};
    if (const auto id = id_in(mode, scope, "mode")) out.push_back(*id);
    return out;
  }

  void check_lacks(const NoiseScope& scope) const {
    Lacks lacks(scope, kType);
    lacks.reader();
    lacks.end(eos);
    if (!lacks.any() || !(rate > 0 && rate < 1) || mean_span < 1) return;
    const bool of_tokenizer = sentinels || scope.tokenizer.id(sentinel(0));
    const int64_t length = SpanCorruption::longest(scope.room, rate, mean_span, mode.has_value());
    lacks.check(of_tokenizer ? 0 : SpanCounts::of(length, rate, mean_span).spans);
  }

  std::vector<int64_t> sentinel_ids(const NoiseScope& scope) const {
    std::vector<int64_t> out;
    if (sentinels) {
      for (const TokenName& token : *sentinels) out.push_back(id_in(token, scope, "sentinels"));
      return out;
    }
    while (const auto id = scope.tokenizer.id(sentinel(out.size()))) out.push_back(*id);
    if (!out.empty()) return out;
    // a text of any length that fits has fewer spans
    for (int64_t id = scope.spec.vocab - 1;
         id >= scope.tokenizer.vocab_size() && std::ssize(out) <= scope.room.length; --id)
      if (std::find(scope.named.begin(), scope.named.end(), id) == scope.named.end())
        out.push_back(id);
    return out;
  }

  std::unique_ptr<Noise> build(const NoiseScope& scope) const {
    check_reader(scope, kType);
    return std::make_unique<SpanCorruption>(
        scope.room, SpanCorruption::Options{rate, mean_span, sentinel_ids(scope),
                                            end_in(eos, scope), id_in(mode, scope, "mode")});
  }
};

struct PrefixRecipe {
  static constexpr const char* kType = "prefix_lm";
  std::optional<TokenName> mode = {};

  static constexpr auto fields() {
    return std::tuple{
        field("mode", &PrefixRecipe::mode, "mode token in front of the input; null = none")};
  }
  std::vector<int64_t> named(const NoiseScope& scope) const {
    const auto id = id_in(mode, scope, "mode");
    return id ? std::vector{*id} : std::vector<int64_t>();
  }
  std::unique_ptr<Noise> build(const NoiseScope& scope) const {
    check_reader(scope, kType);
    return std::make_unique<PrefixCut>(scope.room, id_in(mode, scope, "mode"), scope.separator);
  }
};

struct NextTokenRecipe {
  static constexpr const char* kType = "causal_lm";
  static constexpr auto fields() { return std::tuple{}; }
  std::vector<int64_t> named(const NoiseScope&) const { return {}; }
  std::unique_ptr<Noise> build(const NoiseScope& scope) const {
    check_decoder(scope, kType);
    return std::make_unique<NextToken>(scope.room, scope.separator);
  }
};

struct DenoisingRecipe {
  static constexpr const char* kType = "denoising";
  double permute = 1;
  double infill = 0.3;
  double mean_span = 3;
  double erase = 0;
  double rotate = 0;
  std::optional<TokenName> mask = {};
  std::optional<TokenName> eos = {};
  std::optional<std::vector<TokenName>> sentence_end = {};

  static constexpr auto fields() {
    using C = DenoisingRecipe;
    return std::tuple{
        field("permute", &C::permute, "share of the sentences to permute", {.min = 0, .max = 1}),
        field("infill", &C::infill, "share of the tokens in spans replaced by one mask each",
              {.min = 0, .max = 1}),
        field("mean_span", &C::mean_span, "mean span length, tokens", {.min = 0.5}),
        field("delete", &C::erase, "share of the tokens to delete", {.min = 0, .below = 1}),
        field("rotate", &C::rotate, "share of the texts to rotate to a random start",
              {.min = 0, .max = 1}),
        field("mask", &C::mask, "mask token of a span; needed with infill"),
        field("eos", &C::eos, "end token of input and target; null = the tokenizer's end of text"),
        field("sentence_end", &C::sentence_end,
              "tokens that end a sentence; null = those of nothing but . ! and ?")};
  }

  std::vector<int64_t> named(const NoiseScope& scope) const {
    Lacks lacks(scope, kType);
    lacks.reader();
    lacks.end(eos);
    lacks.token("mask", mask, infill == 0);
    lacks.check();
    std::vector<int64_t> out{end_in(eos, scope)};
    if (const auto id = id_in(mask, scope, "mask")) out.push_back(*id);
    return out;
  }

  std::vector<int64_t> ends(const NoiseScope& scope) const {
    std::vector<int64_t> out;
    if (sentence_end) {
      for (const TokenName& token : *sentence_end)
        out.push_back(id_in(token, scope, "sentence_end"));
    } else {
      for (int32_t id = 0; id < scope.tokenizer.vocab_size(); ++id) {
        if (scope.tokenizer.is_special(id)) continue;
        std::string text = scope.tokenizer.decode(std::span(&id, 1));
        text.erase(0, text.find_first_not_of(' '));
        if (!text.empty() && text.find_first_not_of(".!?") == std::string::npos) out.push_back(id);
      }
    }
    std::sort(out.begin(), out.end());
    return out;
  }

  std::unique_ptr<Noise> build(const NoiseScope& scope) const {
    check_reader(scope, kType);
    if (infill > 0 && !mask)
      fail(ErrorKind::spec, scope.where + ".mask",
           "missing; infill {} puts it in the place of spans: expected a token, or an id", infill);
    if (permute == 0 && infill == 0 && erase == 0 && rotate == 0)
      fail(ErrorKind::spec, scope.where,
           "permute, infill, delete and rotate are all 0; expected one of them to spoil the text");
    Denoising::Options options{permute,
                               infill,
                               mean_span,
                               erase,
                               rotate,
                               id_in(mask, scope, "mask").value_or(0),
                               end_in(eos, scope),
                               {}};
    if (permute > 0) {
      options.sentence_ends = ends(scope);
      if (options.sentence_ends.empty())
        fail(ErrorKind::spec, scope.where + ".sentence_end",
             "no token of the tokenizer is . ! or ?; expected those that end sentences, or permute "
             "0");
    }
    return std::make_unique<Denoising>(scope.room, std::move(options));
  }
};

struct MiddleRecipe {
  static constexpr const char* kType = "fim";
  double rate = 0.5;
  double spm_rate = 0.5;
  MiddleCut cut = MiddleCut::characters;
  MiddleLoss loss = MiddleLoss::all;
  MiddleUnit unit = MiddleUnit::window;
  std::optional<TokenName> prefix = {}, suffix = {}, middle = {}, eos = {};

  static constexpr auto fields() {
    using C = MiddleRecipe;
    return std::tuple{
        field("rate", &C::rate, "share of the texts rearranged for fill-in-the-middle",
              {.min = 0, .max = 1}),
        field("spm_rate", &C::spm_rate, "share of these with the suffix first (SPM)",
              {.min = 0, .max = 1}),
        field("cut", &C::cut,
              "characters: anywhere, parts tokenized separately; tokens: between tokens"),
        field("loss", &C::loss,
              "all: loss of every token; middle: of the middle and its end token"),
        field("unit", &C::unit,
              "window: cut the part of a document in a window; document: cut whole documents, of "
              "which a window shows a part"),
        field("prefix", &C::prefix, "token before it; null = the tokenizer's <|fim_prefix|>"),
        field("suffix", &C::suffix, "token before it; null = the tokenizer's <|fim_suffix|>"),
        field("middle", &C::middle, "token before it; null = the tokenizer's <|fim_middle|>"),
        field("eos", &C::eos, "end token after the middle; null = the tokenizer's end of text")};
  }

  static std::optional<int64_t> of_tokenizer(std::string_view key, const NoiseScope& scope) {
    const auto ids = text::fim_of(scope.tokenizer);
    if (!ids) return std::nullopt;
    return key == "prefix" ? ids->prefix : key == "suffix" ? ids->suffix : ids->middle;
  }
  static int64_t part(const std::optional<TokenName>& token,
                      const NoiseScope& scope,
                      const char* key) {
    if (token) return id_in(*token, scope, key);
    if (const auto id = of_tokenizer(key, scope)) return *id;
    fail(ErrorKind::spec, fmt::format("{}.{}", scope.where, key),
         "missing, and the tokenizer has no <|fim_{}|>; expected a token, or an id, which may "
         "exceed the tokenizer's {}",
         key, scope.tokenizer.vocab_size());
  }
  MiddleTokens tokens(const NoiseScope& scope) const {
    return {part(prefix, scope, "prefix"), part(suffix, scope, "suffix"),
            part(middle, scope, "middle"), end_in(eos, scope)};
  }
  std::vector<int64_t> named(const NoiseScope& scope) const {
    Lacks lacks(scope, kType);
    for (const auto& [key, token] :
         {std::pair("prefix", &prefix), std::pair("suffix", &suffix), std::pair("middle", &middle)})
      lacks.token(key, *token, of_tokenizer(key, scope).has_value());
    lacks.end(eos);
    lacks.check();
    const MiddleTokens all = tokens(scope);
    return {all.prefix, all.suffix, all.middle, all.eos};
  }
  std::unique_ptr<Noise> build(const NoiseScope& scope) const {
    check_decoder(scope, kType);
    FillInMiddle::Options options{rate,
                                  spm_rate,
                                  tokens(scope),
                                  loss == MiddleLoss::middle,
                                  {},
                                  unit == MiddleUnit::document};
    if (unit == MiddleUnit::document && cut == MiddleCut::characters)
      fail(ErrorKind::spec, scope.where + ".cut",
           "\"characters\" with unit \"document\", whose parts would have to be tokenized for "
           "every window; expected \"tokens\"");
    if (unit == MiddleUnit::document && loss == MiddleLoss::middle)
      fail(ErrorKind::spec, scope.where + ".loss",
           "\"middle\" with unit \"document\", of which a window may show none; expected \"all\"");
    std::vector<int64_t> all = named(scope);
    std::sort(all.begin(), all.end());
    if (const auto twice = std::adjacent_find(all.begin(), all.end()); twice != all.end())
      fail(ErrorKind::spec, scope.where,
           "prefix, suffix, middle and eos: two of them are token {}; expected four", *twice);
    if (cut == MiddleCut::characters) options.characters = scope.tokenizer;
    return std::make_unique<FillInMiddle>(scope.room, std::move(options));
  }
};

template <class C>
class Config final : public NoiseConfig {
 public:
  explicit Config(C values) : values_(std::move(values)) {}
  std::string type() const override { return C::kType; }
  Json dump() const override {
    Json json = spec::dump_struct(values_);
    json["type"] = C::kType;
    return json;
  }
  std::vector<int64_t> named(const NoiseScope& scope) const override {
    return values_.named(scope);
  }
  std::unique_ptr<Noise> build(const NoiseScope& scope) const override {
    return values_.build(scope);
  }

 private:
  C values_;
};

struct Kind {
  std::string type;
  NoiseConfigPtr (*read)(const Json&, const spec::Scope&);
  Json (*schema)();
};

template <class C>
Kind kind() {
  return {C::kType,
          [](const Json& json, const spec::Scope& scope) -> NoiseConfigPtr {
            C values;
            spec::detail::read_object(json, &values, spec::detail::object_type<C>(), scope, true);
            return std::make_shared<Config<C>>(std::move(values));
          },
          [] { return spec::struct_schema<C>(); }};
}

constexpr const char* kMixture = "mixture";

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {kind<SpanRecipe>(), kind<PrefixRecipe>(),
                                        kind<MiddleRecipe>(), kind<DenoisingRecipe>(),
                                        kind<NextTokenRecipe>()};
  return all;
}

std::string type_in(const Json& json, const spec::Scope& scope) {
  if (!json.is_object())
    fail(ErrorKind::spec, scope.path, "found {}; expected an object", spec::kind_of(json));
  if (!json.contains("type"))
    fail(ErrorKind::spec, scope.path, "\"type\" is missing; expected the type of the objective");
  return spec::detail::read_string(json["type"], scope.at("type"));
}

NoiseConfigPtr read_one(const Json& json, const spec::Scope& scope) {
  const std::string type = type_in(json, scope);
  for (const Kind& kind : kinds())
    if (kind.type == type) return kind.read(json, scope);
  std::vector<std::string> known = noise_types();
  known.pop_back();
  fail(ErrorKind::spec, scope.at("type").path, "unknown value \"{}\"{}; expected one of {}", type,
       spec::did_you_mean(type, known), spec::detail::joined(known));
}

}  // namespace

std::vector<NoiseShare> read_noises(const Json& json, const spec::Scope& scope) {
  if (type_in(json, scope) != kMixture) return {{1, read_one(json, scope)}};
  spec::check_keys(json, {"type", "of"}, scope.path, "");
  const spec::Scope list = scope.at("of");
  if (!json.contains("of") || !json["of"].is_array() || json["of"].empty())
    fail(ErrorKind::spec, list.path, "{}; expected a list of objectives, each with a \"weight\"",
         json.contains("of") && json["of"].is_array() ? "it is empty" : "found none");
  std::vector<NoiseShare> out;
  double sum = 0;
  for (size_t i = 0; i < json["of"].size(); ++i) {
    Json one = json["of"][i];
    const spec::Scope here = spec::detail::item_scope(list, i);
    NoiseShare share;
    if (one.is_object() && one.contains("weight")) {
      share.weight = spec::detail::read_number(one["weight"], {.min = 0}, here.at("weight"));
      one.erase("weight");
    }
    share.noise = read_one(one, here);
    sum += share.weight;
    out.push_back(std::move(share));
  }
  if (!(sum > 0)) fail(ErrorKind::spec, list.path, "all weights are 0; expected one above");
  return out;
}

std::string type_of(const std::vector<NoiseShare>& shares) {
  return shares.size() == 1 ? shares.front().noise->type() : kMixture;
}

Json dump_noises(const std::vector<NoiseShare>& shares) {
  if (shares.size() == 1) return shares.front().noise->dump();
  Json json = {{"type", kMixture}, {"of", Json::array()}};
  for (const NoiseShare& share : shares) {
    json["of"].push_back(share.noise->dump());
    json["of"].back()["weight"] = share.weight;
  }
  return json;
}

const std::vector<std::string>& noise_types() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> out;
    for (const Kind& kind : kinds()) out.push_back(kind.type);
    out.emplace_back(kMixture);
    return out;
  }();
  return all;
}

Json noise_schema(const std::string& type) {
  Json schema = {{"type", "object"}, {"required", Json::array()}, {"additionalProperties", false}};
  for (const Kind& kind : kinds())
    if (kind.type == type) schema = kind.schema();
  if (type == kMixture) {
    schema["properties"]["of"] = {
        {"type", "array"},
        {"items", {{"type", "object"}}},
        {"description", "objectives, of which every sample draws one, each with its \"weight\""}};
    schema["required"].push_back("of");
  }
  return schema;
}

std::vector<std::unique_ptr<Noise>> build_noises(const std::vector<NoiseShare>& shares,
                                                 NoiseScope scope) {
  const std::string where = scope.where;
  const auto each = [&](const auto& visit) {
    for (size_t i = 0; i < shares.size(); ++i) {
      scope.where = shares.size() > 1 ? fmt::format("{}.of[{}]", where, i) : where;
      visit(*shares[i].noise);
    }
  };
  each([&](const NoiseConfig& noise) {
    for (const int64_t id : noise.named(scope)) scope.named.push_back(id);
  });
  std::vector<std::unique_ptr<Noise>> out;
  each([&](const NoiseConfig& noise) { out.push_back(noise.build(scope)); });
  return out;
}

}  // namespace tessera::train
