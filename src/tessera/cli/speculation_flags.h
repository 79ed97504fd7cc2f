// Speculative decoding: the same flags for every command that generates text.
#pragma once

#include <charconv>
#include <filesystem>
#include <optional>

#include "tessera/cli/device_flag.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/infer/speculation/drafter.h"

namespace tessera::cli {

class SpeculationFlags {
 public:
  /// Flags of the source of draft tokens.
  void add_who(CLI::App& app) {
    auto* draft_flag = app.add_option(
        "--draft,--model-draft", draft_,
        "draft model (same vocabulary); the output is unchanged. An encoder-decoder needs an "
        "encoder-decoder draft");
    auto* lookup =
        app.add_option(
               "--lookup", how_.lookup,
               "prompt lookup decoding: draft what followed the last n-gram (up to N tokens) "
               "earlier in the text")
            ->excludes(draft_flag)
            ->check(positive());
    auto* predictors =
        app.add_flag("--predictors", how_.predictors,
                     "self-speculative: draft with the model's multi-token-prediction heads, "
                     "at most one token each")
            ->excludes(draft_flag)
            ->excludes(lookup);
    auto* exit_layer =
        app.add_option("--exit-layer", how_.exit_layer,
                       "self-speculative: draft with the first N layers (early exit, LayerSkip)")
            ->excludes(draft_flag)
            ->excludes(lookup)
            ->excludes(predictors)
            ->check(positive());
    names_model(draft_flag, draft_);
    whose_ = {draft_flag, lookup, predictors, exit_layer};
  }
  /// Flags of the number of draft tokens.
  void add(CLI::App& app) {
    add_who(app);
    draft_tokens_flag_ = add_draft_tokens(app, draft_tokens_,
                                          "; auto = 0 to 8, by measured acceptance rate and cost");
    branches_flag_ = add_branches(app, how_.tree_width, "; 1 = a chain; attention-only models");
  }
  /// The same flags for other variables; `more` ends the doc line.
  template <class T>
  static CLI::Option* add_draft_tokens(CLI::App& app, T& value, const std::string& more) {
    return app
        .add_option("--draft-tokens,--guesses,--draft-max,--draft-n", value,
                    "draft tokens per step" + more)
        ->capture_default_str();
  }
  static CLI::Option* add_branches(CLI::App& app, int64_t& value, const std::string& more) {
    return app
        .add_option("--branches", value,
                    "tree verification: candidates per drafted position" + more)
        ->capture_default_str()
        ->check(CLI::Range(1, 64));
  }

  bool on() const { return how_.on() || !draft_.empty(); }
  /// The given flag for the source; "" without any.
  std::string given() const {
    for (const CLI::Option* flag : whose_)
      if (flag->count() > 0) return flag->get_name();
    return "";
  }
  /// Throws Error(usage) for invalid numbers, or without a source of draft tokens.
  void check() {
    // llama.cpp's --draft is a number of tokens
    if (!draft_.empty() && draft_.find_first_not_of("0123456789") == std::string::npos &&
        !std::filesystem::exists(draft_))
      fail(ErrorKind::usage, "generate",
           "--draft {}: expected a draft model; the number of draft tokens is --draft-tokens {}",
           draft_, draft_);
    for (const CLI::Option* flag : {draft_tokens_flag_, branches_flag_})
      if (flag->count() > 0 && !on())
        fail(ErrorKind::usage, "generate",
             "{} needs a source of draft tokens; expected --draft, --lookup, --predictors or "
             "--exit-layer",
             flag->get_name());
    how_.adaptive = draft_tokens_ == "auto";
    how_.draft_tokens = kMostAdaptive;
    if (!how_.adaptive) {
      const char *const begin = draft_tokens_.data(), *const end = begin + draft_tokens_.size();
      const auto [stop, error] = std::from_chars(begin, end, how_.draft_tokens);
      if (error != std::errc() || stop != end || how_.draft_tokens < 1 || how_.draft_tokens > 1024)
        fail(ErrorKind::usage, "generate",
             "--draft-tokens {}; expected auto, or a number from 1 to 1024",
             draft_tokens_.substr(0, 60));
    }
  }
  /// The checked options with the loaded draft model, which lives as long as this object.
  infer::Speculation load(const convert::LoadOptions& loading,
                          kernels::Arithmetic arithmetic,
                          const DeviceFlag& device) {
    if (!draft_.empty()) {
      convert::LoadOptions own = loading;
      own.spec.clear();  // of the model, not of its draft
      loaded_.emplace(device.loaded([&] { return infer::load_model(draft_, own, arithmetic); }));
      how_.draft = &loaded_->model;
    }
    return how_;
  }

 private:
  // Limit of adaptive draft length: with an acceptance rate of 3/4, the ninth draft token is
  // accepted in 1 of 13 cases.
  static constexpr int64_t kMostAdaptive = 8;

  std::string draft_, draft_tokens_ = "auto";
  infer::Speculation how_;
  std::optional<infer::LoadedModel> loaded_;
  std::vector<const CLI::Option*> whose_;
  const CLI::Option *draft_tokens_flag_ = nullptr, *branches_flag_ = nullptr;
};

}  // namespace tessera::cli
