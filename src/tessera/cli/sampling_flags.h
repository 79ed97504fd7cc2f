// Sampling parameters: the same flags for every command that generates text.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/ranges.h>

#include "tessera/cli/decoding_flags.h"
#include "tessera/infer/loading/decoding_defaults.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/infer/sampling/seed.h"

namespace tessera::cli {

class SamplingFlags {
 public:
  /// `options` must outlive the parsing.
  void add(CLI::App& app, infer::SamplingOptions& options) {
    app_ = &app;
    options_ = &options;
    using infer::decoding_field;
    for (const infer::DecodingField& field : infer::sampling_fields())
      std::visit(
          [&]<class Member>(Member member) {
            if constexpr (!std::is_same_v<Member, std::monostate>)
              add_flag_of(app, field, options.*member)->capture_default_str();
          },
          field.member);
    add_flag_of(app, decoding_field("dry_sequence_breakers"), breakers_,
                "; none = no breakers; repeatable");
    add_flag_of(app, decoding_field("bad_words"), options.bad_words, "; repeatable");
    add_flag_of(app, decoding_field("samplers"), samplers_, "; comma-separated")
        ->default_str(infer::to_string(options.samplers));
    add_flag_of(app, decoding_field("logit_bias"), biases_,
                ": ID:BIAS; ID:-inf bans it; of several ids (13,7:-2) the last one's where the "
                "others precede; repeatable");
    app.add_option("--generation-config", config_,
                   "auto = unset options come from the model's generation_config.json or GGUF keys "
                   "general.sampling.*; none = from the defaults here")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "none"}));
    const infer::DecodingField& seed = decoding_field("seed");
    app.add_option_function<std::string>(
           seed.flag_names(),
           [&options](const std::string& text) { options.seed = *infer::seed_of(text); },
           seed.with(", which is printed. A session keeps its own"))
        ->default_str("0")
        ->check(CLI::Validator(
            [](const std::string& text) -> std::string {
              if (infer::seed_of(text)) return "";
              return fmt::format("{}; expected {}", text, decoding_field("seed").expected);
            },
            "SEED"));
  }

  bool given(const std::string& name) const {
    const CLI::Option* const option = app_->get_option_no_throw(name);
    return option != nullptr && option->count() > 0;
  }
  /// The flag of an option: --top-p of "top_p".
  static std::string flag_of(std::string_view name) {
    std::string out = fmt::format("--{}", name);
    std::replace(out.begin(), out.end(), '_', '-');
    return out;
  }
  /// The first given flag without effect in greedy decoding, if decoding is greedy; otherwise
  /// empty.
  std::string filter_given() const {
    for (const infer::DecodingField& field : infer::sampling_fields())
      if (field.filters && given(field.flag())) return field.flag();
    return "";
  }
  /// Checks the flags before a model is loaded.
  void check() {
    for (const std::string& bias : biases_) read_bias(bias);
    if (!breakers_.empty()) options_->dry_sequence_breakers = breakers_;
    if (breakers_ == std::vector<std::string>{"none"}) options_->dry_sequence_breakers.clear();
    if (given("--samplers")) options_->samplers = samplers_of(samplers_);
    options_->check();
    const std::string conflict = infer::conflict_among(
        *options_, [&](const infer::DecodingField& field) { return given(field.flag()); });
    if (!conflict.empty()) fail(ErrorKind::usage, "generate", "{}", conflict);
  }
  /// Adds the model's own settings where no flag is given. Prints those without effect.
  infer::DecodingDefaults fill(const convert::GenerationConfig& config,
                               infer::TextKind kind,
                               infer::DecodingOptions& writing) {
    const auto defaults =
        infer::decoding_defaults(config_ == "none" ? convert::GenerationConfig() : config, kind);
    infer::take_defaults(
        defaults, [&](std::string_view name) { return given(flag_of(name)); }, writing);
    if (!defaults.unsupported.empty())
      fmt::print(stderr, "tessera: {}: without effect: {}\n", defaults.source,
                 fmt::join(defaults.unsupported, ", "));
    return defaults;
  }
  /// Prints the decoding options in force, as the first line of a run.
  static void print(const infer::DecodingOptions& writing,
                    const std::optional<infer::BeamOptions>& beams,
                    const infer::DecodingDefaults& defaults) {
    fmt::print(stderr, "decoding: {}{}\n", infer::describe(writing, beams),
               defaults.source.empty() ? "" : fmt::format(" ({})", defaults.source));
  }
  /// "penalties,top_k", or with llama.cpp's semicolons.
  static std::vector<infer::Sampler> samplers_of(const std::string& text) {
    std::vector<std::string> names;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find_first_of(",;", begin), text.size());
      if (!text.empty()) names.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return infer::samplers_named(names);
  }
  /// Stop token ids; "none" leaves the tokenizer's.
  std::vector<int64_t> ends(const infer::LoadedModel& loaded) const {
    if (config_ == "auto") return infer::eos_ids(loaded);
    if (loaded.tokenizer && loaded.tokenizer->eos()) return {*loaded.tokenizer->eos()};
    return {};
  }

 private:
  /// "13:-5" is for a token, "13,7:-5" for a sequence.
  void read_bias(const std::string& text) {
    const size_t colon = text.find(':');
    std::vector<int64_t> ids;
    double bias = 0;
    const char *const begin = text.data(), *const end = begin + text.size(),
                      *const middle = begin + std::min(colon, text.size());
    bool good = colon != std::string::npos;
    for (const char* at = begin; good;) {
      const auto read = std::from_chars(at, middle, ids.emplace_back());
      good = read.ec == std::errc() && (read.ptr == middle || *read.ptr == ',');
      if (good && read.ptr == middle) break;
      at = read.ptr + 1;
    }
    if (good && text.substr(colon + 1) == "-inf") {
      bias = -INFINITY;
    } else if (good) {
      const auto number = std::from_chars(middle + 1, end, bias);
      good = number.ec == std::errc() && number.ptr == end && std::isfinite(bias);
    }
    if (!good)
      fail(ErrorKind::usage, "generate",
           "--logit-bias {}; expected the id of a token and a number, as in 13:-5 or 13:-inf, or "
           "several ids, as in 13,7:-5",
           text.substr(0, 60));
    if (ids.size() == 1)
      options_->logit_bias.emplace_back(ids.front(), bias);
    else
      options_->sequence_bias.emplace_back(std::move(ids), bias);
  }

  CLI::App* app_ = nullptr;
  infer::SamplingOptions* options_ = nullptr;
  std::vector<std::string> biases_, breakers_;
  std::string samplers_;
  std::string config_ = "auto";
};

}  // namespace tessera::cli
