// The keys of the objective "distillation" in recipes.
//   L = (1 - alpha) L_inner + alpha sum_i weight_i L_i
// Hinton, Vinyals, Dean 2015, arXiv:1503.02531. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/spec/fields.h"

namespace tessera::train {

/// What is compared between the two models.
enum class TermOf {
  logits,     // token predictions
  hidden,     // outputs of layers: Romero et al. 2014, arXiv:1412.6550
  attention,  // attention weights: Wang et al. 2020, arXiv:2002.10957 (MiniLM)
  values,     // relations between values: the same
  mixer,  // mixer outputs for the teacher's inputs: Bick et al. 2024, arXiv:2408.10189 (MOHAWK);
          // Zhang et al. 2024, arXiv:2410.10254 (LoLCATs)
};

enum class Divergence { forward, reverse, jsd };
enum class HiddenDistance { mse, cosine };
enum class MixerMatch {
  outputs,        // of the mixer
  heads,          // of its heads, before the output projection
  cross_entropy,  // by row of the attention weights, tokens by tokens
  frobenius,      // of those matrices
};

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::TermOf> {
  using E = tessera::train::TermOf;
  static constexpr std::array names{std::pair{E::logits, "logits"}, std::pair{E::hidden, "hidden"},
                                    std::pair{E::attention, "attention"},
                                    std::pair{E::values, "values"}, std::pair{E::mixer, "mixer"}};
};
template <>
struct tessera::spec::EnumNames<tessera::train::Divergence> {
  using E = tessera::train::Divergence;
  static constexpr std::array names{std::pair{E::forward, "forward"},
                                    std::pair{E::reverse, "reverse"}, std::pair{E::jsd, "jsd"}};
};
template <>
struct tessera::spec::EnumNames<tessera::train::HiddenDistance> {
  using E = tessera::train::HiddenDistance;
  static constexpr std::array names{std::pair{E::mse, "mse"}, std::pair{E::cosine, "cosine"}};
};
template <>
struct tessera::spec::EnumNames<tessera::train::MixerMatch> {
  using E = tessera::train::MixerMatch;
  static constexpr std::array names{std::pair{E::outputs, "outputs"}, std::pair{E::heads, "heads"},
                                    std::pair{E::cross_entropy, "cross_entropy"},
                                    std::pair{E::frobenius, "frobenius"}};
};

namespace tessera::train {

struct DistillationTerm {
  TermOf of = TermOf::logits;
  double weight = 1;
  Divergence divergence = Divergence::forward;
  double beta = 0.5;
  double temperature = 1;
  int64_t top_k = 0;
  HiddenDistance distance = HiddenDistance::mse;
  int64_t heads = 0;
  MixerMatch match = MixerMatch::outputs;

  static constexpr auto fields() {
    using C = DistillationTerm;
    using spec::field;
    return std::tuple{
        field(
            "of", &C::of,
            "logits; hidden: outputs of layers; attention: attention weights; values: similarities "
            "of values (MiniLM); mixer: mixer outputs on the teacher's inputs, layer by layer",
            {.required = true}),
        field("weight", &C::weight, "factor on the term", {.min = 0}),
        field(
            "divergence", &C::divergence,
            "logits: forward: KL(teacher, student), mode covering; reverse: KL(student, teacher), "
            "mode seeking; jsd: Jensen-Shannon"),
        field("beta", &C::beta, "jsd: the teacher's share of the mean, between 0 and 1",
              {.above = 0, .below = 1}),
        field("temperature", &C::temperature,
              "logits: divides both sides' logits; the term is multiplied by its square",
              {.above = 0}),
        field("top_k", &C::top_k,
              "logits: the teacher's k most likely classes, the others as one; 0 = all",
              {.min = 0}),
        field("distance", &C::distance,
              "hidden: mse, mean over channels; cosine: 1 less the cosine"),
        field("heads", &C::heads,
              "values: heads to cut both sides' values into (MiniLMv2); 0 = their own", {.min = 0}),
        field("match", &C::match,
              "mixer: outputs, mean square of the difference; heads: the same before the output "
              "projection; cross_entropy, frobenius: of the matrices that mix tokens")};
  }
};

/// The keys of the objective except "inner".
struct DistillationKeys {
  static constexpr const char* kType = "distillation";
  std::string teacher = {};
  double alpha = 0.5;
  std::vector<DistillationTerm> terms = {};
  std::optional<std::vector<std::vector<int64_t>>> layers = {};
  std::vector<std::string> ignore_keys = {};

  static constexpr auto fields() {
    using C = DistillationKeys;
    using spec::field;
    return std::tuple{
        field("teacher", &C::teacher,
              "a model: a Hugging Face folder, a GGUF file, a run's folder or one of its "
              "checkpoints",
              {.required = true}),
        field("alpha", &C::alpha,
              "weight of the distillation terms; the inner objective has 1 - alpha",
              {.min = 0, .max = 1}),
        field("terms", &C::terms, "distillation losses; default: logits"),
        field("layers", &C::layers,
              "pairs [teacher's, student's] of layers, from 0; null = evenly, last with last"),
        field(
            "ignore_keys", &C::ignore_keys,
            "keys of the teacher's config.json or GGUF metadata that are read as if they were not "
            "there; * = any text")};
  }
};

/// Layers that are compared.
struct LayerPair {
  int64_t teacher = 0, student = 0;
};
/// As many pairs as the smaller model has layers, the last with the last.
std::vector<LayerPair> even_layers(int64_t teacher, int64_t student);

/// Names of the terms' losses, in order: "logits", for repeated ones "hidden_2".
std::vector<std::string> loss_names(const std::vector<DistillationTerm>& terms);

}  // namespace tessera::train
