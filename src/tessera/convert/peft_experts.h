// Adapters for experts, which our models hold as stacks [E, O, I]. Files know two forms:
//   one by one   MODULE.experts.3.up_proj.lora_A.weight: a product for each expert
//   packed       MODULE.experts.lora_A.weight [E r, c], lora_B.weight [d, r E]: the products of all
//                experts of one parameter [E, d, c] (PEFT's target_parameters). Rows of A go by
//                expert, columns of B by rank. PEFT 0.17 to 0.19.0 wrote some for the transposed
//                parameter: there A is B of the other form. The shapes show it, of square ones the
//                config's version.
#pragma once

#include "tessera/convert/peft_parts.h"

namespace tessera::convert::peft {

/// The products of a rule whose foreign matrices are those of single experts; takes the modules
/// that it reads. Experts without a product get zeros.
AdapterTensors read_each_expert(const BoundRule& rule,
                                const Shape& stack,
                                const PeftConfig& config,
                                const std::string& file,
                                std::map<std::string, PeftModule>& modules);

/// The products of packed experts for one module of the file: for the gates and the way up, or for
/// the way down. `pairs`: rows of gates and of the way up take turns.
std::vector<AdapterTensors> read_packed_experts(const std::string& module,
                                                const PeftModule& parts,
                                                const Shapes& stacks,
                                                bool pairs,
                                                const PeftConfig& config,
                                                const std::string& file);

/// Throws Error(file) unless a product of `module` has the rank that the config gives it, of each
/// of `experts`.
void check_rank(const PeftConfig& config,
                const std::string& module,
                int64_t found,
                int64_t experts,
                const std::string& file);

}  // namespace tessera::convert::peft
