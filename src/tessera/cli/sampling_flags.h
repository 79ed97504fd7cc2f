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
    app.add_option("--temperature", options.temperature, "0 = the most likely token each time")
        ->capture_default_str();
    app.add_option("--top-k", options.top_k, "only the k most likely; 0 = all")
        ->capture_default_str();
    app.add_option("--top-p", options.top_p, "only the most likely that make up p")
        ->capture_default_str();
    app.add_option("--min-p", options.min_p, "only those at least so likely, relative to the best")
        ->capture_default_str();
    app.add_option("--repetition-penalty", options.repetition_penalty,
                   "above 1: tokens seen become less likely")
        ->capture_default_str();
    app.add_option("--presence-penalty", options.presence_penalty,
                   "what logits of tokens said so far fall by")
        ->capture_default_str()
        ->check(finite());
    app.add_option("--frequency-penalty", options.frequency_penalty,
                   "the same for each time that they were said")
        ->capture_default_str()
        ->check(finite());
    app.add_option("--repeat-last-n", options.repeat_last_n,
                   "penalties look at the last n tokens; -1 = all of the answer, and for "
                   "--repetition-penalty of the prompt too")
        ->capture_default_str()
        ->check(CLI::Range(int64_t{-1}, int64_t{1} << 40));
    app.add_option("--logit-bias", biases_,
                   "ID:NUMBER is added to the logit of a token; ID:-inf = never; repeatable")
        ->allow_extra_args(false);
    app.add_option("--generation-config", config_,
                   "auto = where no flag says otherwise, tokens are chosen as the model's "
                   "generation_config.json says; none = as the flags' defaults say")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "none"}));
  }

  bool given(const char* name) const { return app_->count(name) > 0; }
  /// What the flags say, before a model is read.
  void check() {
    options_->logit_bias.clear();
    for (const std::string& bias : biases_) options_->logit_bias.push_back(bias_of(bias));
    options_->check();
  }
  /// And what the model's makers say where they are silent.
  void fill(const convert::GenerationConfig& config) {
    if (config_ == "none") return;
    const infer::SamplingOptions made = infer::sampling_defaults(config, true);
    const auto take = [&](const char* name, auto& own, auto other) {
      if (!given(name)) own = other;
    };
    take("--repetition-penalty", options_->repetition_penalty, made.repetition_penalty);
    take("--temperature", options_->temperature, made.temperature);
    if (options_->temperature == 0) return;
    take("--top-k", options_->top_k, made.top_k);
    take("--top-p", options_->top_p, made.top_p);
    take("--min-p", options_->min_p, made.min_p);
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
  std::vector<std::string> biases_;
  std::string config_ = "auto";
};

}  // namespace tessera::cli
