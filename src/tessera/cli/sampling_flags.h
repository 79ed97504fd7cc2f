// How tokens are chosen: the same flags for every verb that makes texts.
#pragma once

#include <charconv>
#include <cmath>

#include "tessera/cli/cli.h"
#include "tessera/infer/load_model.h"

namespace tessera::cli {

class SamplingFlags {
 public:
  /// Where flags write to must outlive the parsing.
  void add(CLI::App& app, infer::SamplingOptions& options) {
    app_ = &app;
    options_ = &options;
    for (const infer::SamplingField& field : infer::sampling_fields())
      std::visit(
          [&](auto member) {
            app.add_option(field.flag(), options.*member, field.doc)->capture_default_str();
          },
          field.member);
    add_texts(app, "--dry-sequence-breaker", breakers_,
              "no repeated run of DRY goes through this text: a line's end, :, \" and * unless "
              "given; none = nothing; repeatable");
    add_texts(app, "--bad-word", options.bad_words,
              "a text that is never said, as the tokenizer writes it alone or behind a space; "
              "repeatable");
    app.add_option("--samplers", samplers_,
                   "what acts on the logits, in this order, with commas; what is left out does "
                   "nothing: some of penalties, no_repeat_ngram, dry, top_n_sigma, temperature, "
                   "top_h, top_k, top_p, min_p, typical_p, epsilon, eta, xtc")
        ->default_str(infer::to_string(options.samplers));
    app.add_option("--logit-bias", biases_,
                   "ID:NUMBER is added to the logit of a token; ID:-inf = never; repeatable")
        ->allow_extra_args(false);
    app.add_option("--generation-config", config_,
                   "auto = where no flag says otherwise, tokens are chosen as the model's "
                   "generation_config.json says; none = as the flags' defaults say")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "none"}));
  }

  bool given(const std::string& name) const { return app_->count(name) > 0; }
  /// The first flag given of those that nothing is drawn by where nothing is drawn by chance; empty
  /// where there is none.
  std::string filter_given() const {
    for (const infer::SamplingField& field : infer::sampling_fields())
      if (field.filters && given(field.flag())) return field.flag();
    return "";
  }
  /// What the flags say, before a model is read.
  void check() {
    options_->logit_bias.clear();
    for (const std::string& bias : biases_) options_->logit_bias.push_back(bias_of(bias));
    if (!breakers_.empty()) options_->dry_sequence_breakers = breakers_;
    if (breakers_ == std::vector<std::string>{"none"}) options_->dry_sequence_breakers.clear();
    if (given("--samplers")) options_->samplers = samplers_of(samplers_);
    options_->check();
    const std::string conflict = infer::conflict_among(
        *options_, [&](const infer::SamplingField& field) { return given(field.flag()); });
    if (!conflict.empty()) fail(ErrorKind::usage, "generate", "{}", conflict);
  }
  /// And what the model's makers say where they are silent.
  void fill(const convert::GenerationConfig& config) {
    if (config_ == "none") return;
    const infer::SamplingOptions made = infer::sampling_defaults(config, true);
    const auto take = [&](bool filters) {
      for (const infer::SamplingField& field : infer::sampling_fields())
        if (field.filters == filters && !given(field.flag())) field.set(*options_, field.get(made));
    };
    take(false);
    if (options_->temperature > 0) take(true);
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
  /// Ids that end a text, of which "none" leaves the tokenizer's.
  std::vector<int64_t> ends(const infer::LoadedModel& loaded) const {
    if (config_ == "auto") return infer::end_ids(loaded);
    if (loaded.tokenizer && loaded.tokenizer->eos()) return {*loaded.tokenizer->eos()};
    return {};
  }

 private:
  static std::pair<int64_t, double> bias_of(const std::string& text) {
    const size_t colon = text.find(':');
    int64_t id = 0;
    double bias = 0;
    const char *const begin = text.data(), *const end = begin + text.size(),
                      *const middle = begin + std::min(colon, text.size());
    const auto read = std::from_chars(begin, middle, id);
    bool good = colon != std::string::npos && read.ec == std::errc() && read.ptr == middle;
    if (good && text.substr(colon + 1) == "-inf") {
      bias = -INFINITY;
    } else if (good) {
      const auto number = std::from_chars(middle + 1, end, bias);
      good = number.ec == std::errc() && number.ptr == end && std::isfinite(bias);
    }
    if (!good)
      fail(ErrorKind::usage, "generate",
           "--logit-bias {}; expected the id of a token and a number, as in 13:-5 or 13:-inf",
           text.substr(0, 60));
    return {id, bias};
  }

  CLI::App* app_ = nullptr;
  infer::SamplingOptions* options_ = nullptr;
  std::vector<std::string> biases_, breakers_;
  std::string samplers_;
  std::string config_ = "auto";
};

}  // namespace tessera::cli
