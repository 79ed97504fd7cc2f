#include "exceptions.h"

namespace tessera::contract {

const std::vector<ExceptionEntry>& exceptions() {
  static const std::vector<ExceptionEntry> all = {
      {Exception::angles_change_at_trained_length, "rope_scaling_longrope_crossing", "forms",
       "calls that cross the trained length are refused: all angles change there"},
      {Exception::angles_change_at_trained_length, "rope_scaling_longrope_crossing", "same_bits",
       "calls that cross the trained length are refused: all angles change there"},
      {Exception::angles_change_at_trained_length, "rope_scaling_longrope_crossing", "unwritten",
       "its check with a state crosses the trained length"},
      {Exception::angles_change_at_trained_length, "rope_scaling_longrope_crossing", "state",
       "calls that cross the trained length are refused: all angles change there"},
      {Exception::angles_change_at_trained_length, "rope_scaling_longrope_crossing", "roll_back",
       "calls that cross the trained length are refused: all angles change there"},
      {Exception::angles_change_at_trained_length, "rope_scaling_dynamic_crossing", "forms",
       "calls that cross the trained length are refused: all angles change there"},
      {Exception::angles_change_at_trained_length, "rope_scaling_dynamic_crossing", "same_bits",
       "calls that cross the trained length are refused: all angles change there"},
      {Exception::angles_change_at_trained_length, "rope_scaling_dynamic_crossing", "unwritten",
       "its check with a state crosses the trained length"},
      {Exception::angles_change_at_trained_length, "rope_scaling_dynamic_crossing", "state",
       "calls that cross the trained length are refused: all angles change there"},
      {Exception::angles_change_at_trained_length, "rope_scaling_dynamic_crossing", "roll_back",
       "calls that cross the trained length are refused: all angles change there"},
      {Exception::a_prefix_comes_whole, "pattern_prefix_three", "forms",
       "calls that start inside the prefix are refused: its tokens see each other"},
      {Exception::a_prefix_comes_whole, "pattern_prefix_three", "same_bits",
       "calls that start inside the prefix are refused: its tokens see each other"},
      {Exception::gradients_stop_at_a_memory, "mixer_transformer_xl_short", "gradients",
       "gradients stop at the memory by design, so that they are no derivative"},
      {Exception::gradients_stop_at_a_memory, "mixer_compressive_short", "gradients",
       "gradients stop at the memory by design, so that they are no derivative"},
      {Exception::gradients_stop_at_a_memory, "mixer_memorizing", "gradients",
       "gradients stop at the memory by design, so that they are no derivative"},
      {Exception::gradients_stop_at_a_memory, "mixer_memorizing_combine_joint", "gradients",
       "gradients stop at the memory by design, so that they are no derivative"},
      {Exception::gradients_stop_at_a_memory, "mixer_memorizing_search_approximate", "gradients",
       "gradients stop at the memory by design, so that they are no derivative"},
      {Exception::gradients_stop_at_a_memory, "mixer_memorizing_cache", "gradients",
       "gradients stop at the memory by design, so that they are no derivative"},
      {Exception::depends_on_threads, "mixer_s4_discretisation_zoh", "threads",
       "libtorch's exponential of matrices, in double, before its numbers are rounded to float32"},
      {Exception::scores_sums_held_constant, "mixer_retention_normalise_scores", "gradients",
       "the sums that rows are divided by are constants for gradients by design"},
      {Exception::learns_from_its_own_loss, "mixer_compressive_compression_conv", "parameters",
       "the compression learns from its reconstruction loss alone"},
      {Exception::learns_from_its_own_loss, "mixer_compressive_compression_dilated_conv",
       "parameters", "the compression learns from its reconstruction loss alone"},
      {Exception::learns_from_its_own_loss, "depth_mixture_of_depths_mlp", "parameters",
       "the predictor learns which tokens are chosen from a loss of its own alone"},
      {Exception::learns_from_its_own_loss, "depth_mixture_of_depths_predictor_mlp", "parameters",
       "the predictor learns which tokens are chosen from a loss of its own alone"},
      {Exception::learns_from_its_own_loss, "mixer_compressive_short", "parameters",
       "the compression learns from its reconstruction loss alone"},
      {Exception::learns_from_its_own_loss, "router_policy_gradient", "parameters",
       "the gate learns from the losses of its tokens, not by gradients"},
      {Exception::learns_from_its_own_loss, "router_policy_gradient_losses_balance_switch",
       "parameters", "the gate learns from the losses of its tokens, not by gradients"},
      {Exception::learns_from_its_own_loss, "router_policy_gradient_losses_balance_hf_topk",
       "parameters", "the gate learns from the losses of its tokens, not by gradients"},
      {Exception::learns_from_its_own_loss, "router_policy_gradient_losses_balance_per_choice_mean",
       "parameters", "the gate learns from the losses of its tokens, not by gradients"},
      {Exception::learns_from_its_own_loss, "router_policy_gradient_losses_balance_sequence",
       "parameters", "the gate learns from the losses of its tokens, not by gradients"},
      {Exception::acts_in_training_alone, "router_noisy_top_k", "parameters",
       "its noise is drawn in training alone"},
      {Exception::acts_in_training_alone, "router_noisy_top_k_losses_balance_switch", "parameters",
       "its noise is drawn in training alone"},
      {Exception::acts_in_training_alone, "router_noisy_top_k_losses_balance_hf_topk", "parameters",
       "its noise is drawn in training alone"},
      {Exception::acts_in_training_alone, "router_noisy_top_k_losses_balance_per_choice_mean",
       "parameters", "its noise is drawn in training alone"},
      {Exception::acts_in_training_alone, "router_noisy_top_k_losses_balance_sequence",
       "parameters", "its noise is drawn in training alone"},
  };
  return all;
}

const ExceptionEntry* find_exception(const std::string& name, const std::string& check) {
  for (const ExceptionEntry& entry : exceptions())
    if (name == entry.name && check == entry.check) return &entry;
  return nullptr;
}

}  // namespace tessera::contract
