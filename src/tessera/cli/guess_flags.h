// Who guesses what a model will say, and how far ahead: the same flags for every verb that writes.
#pragma once

#include <charconv>
#include <optional>

#include "tessera/infer/guesser.h"
#include "tessera/infer/load_model.h"

namespace tessera::cli {

class GuessFlags {
 public:
  /// Who guesses.
  void add_who(CLI::App& app) {
    auto* draft_flag = app.add_option(
        "--draft", draft_,
        "a smaller model with the same tokens guesses; the text is the same. Beside an encoder "
        "the draft has one too");
    auto* lookup =
        app.add_option("--lookup", how_.lookup,
                       "guess what followed the last (at most N) tokens where they stood before")
            ->excludes(draft_flag)
            ->check(positive());
    auto* predictors = app.add_flag("--predictors", how_.predictors,
                                    "guess by the model's own predictors of tokens further ahead")
                           ->excludes(draft_flag)
                           ->excludes(lookup);
    auto* exit_layer =
        app.add_option("--exit-layer", how_.exit_layer,
                       "guess by the first N layers of the model itself, which gives what it says "
                       "early when it was trained to")
            ->excludes(draft_flag)
            ->excludes(lookup)
            ->excludes(predictors)
            ->check(positive());
    whose_ = {draft_flag, lookup, predictors, exit_layer};
  }
  /// And how many.
  void add(CLI::App& app) {
    add_who(app);
    guesses_flag_ = app.add_option("--guesses", guesses_,
                                   "of whoever guesses, places ahead per step; predictors make one "
                                   "each at most. auto = as many as pay, up to 8, by how often "
                                   "they are right and what they cost")
                        ->capture_default_str();
    branches_flag_ =
        app.add_option("--branches", how_.branches,
                       "candidates for each of these places: a tree, whose branches the model "
                       "verifies in one call; where all layers are attention")
            ->capture_default_str()
            ->check(CLI::Range(1, 64));
  }

  bool on() const { return how_.on() || !draft_.empty(); }
  /// The flag that was given of those that say who guesses; "" without any.
  std::string given() const {
    for (const CLI::Option* flag : whose_)
      if (flag->count() > 0) return flag->get_name();
    return "";
  }
  /// Throws Error(usage) for numbers that are none, or without who guesses.
  void check() {
    for (const CLI::Option* flag : {guesses_flag_, branches_flag_})
      if (flag->count() > 0 && !on())
        fail(ErrorKind::usage, "generate",
             "{} without who makes them; expected --draft, --lookup, --predictors or --exit-layer",
             flag->get_name());
    how_.paced = guesses_ == "auto";
    how_.guesses = kMostPaced;
    if (!how_.paced) {
      const char *const begin = guesses_.data(), *const end = begin + guesses_.size();
      const auto [stop, error] = std::from_chars(begin, end, how_.guesses);
      if (error != std::errc() || stop != end || how_.guesses < 1 || how_.guesses > 1024)
        fail(ErrorKind::usage, "generate",
             "--guesses {}; expected auto, or a number from 1 to 1024", guesses_.substr(0, 60));
    }
  }
  /// What was asked for, checked, the draft loaded; it lives as long as this does.
  infer::Speculation load(const std::string& families, kernels::Arithmetic arithmetic) {
    if (!draft_.empty())
      how_.draft = &loaded_.emplace(infer::load_model(draft_, {families}, arithmetic)).model;
    return how_;
  }

 private:
  // As many guesses ahead as pay are at most so many: behind a chance of 3/4 each, the ninth is
  // right in 1 of 13 cases.
  static constexpr int64_t kMostPaced = 8;

  std::string draft_, guesses_ = "auto";
  infer::Speculation how_;
  std::optional<infer::LoadedModel> loaded_;
  std::vector<const CLI::Option*> whose_;
  const CLI::Option *guesses_flag_ = nullptr, *branches_flag_ = nullptr;
};

}  // namespace tessera::cli
