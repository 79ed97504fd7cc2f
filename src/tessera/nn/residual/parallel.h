// x = x + sum_i f_i(N_i(x)): all branches of a layer read the same stream; one norm shared (GPT-J,
// PaLM) or one each (NeoX). Wang, Komatsuzaki: GPT-J-6B, 2021; Chowdhery et al.: PaLM,
// arXiv:2204.02311, sec. 2
#pragma once

#include "tessera/nn/residual/residual_config.h"

namespace tessera::nn {

enum class ParallelNorms { one, each };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::ParallelNorms> {
  static constexpr std::array names{std::pair{nn::ParallelNorms::one, "one"},
                                    std::pair{nn::ParallelNorms::each, "each"}};
};

namespace tessera::nn {

struct ParallelConfig final : ResidualConfig {
  ParallelNorms norms_of = ParallelNorms::one;

  static constexpr auto fields() {
    return std::tuple_cat(std::tuple{spec::field("norms", &ParallelConfig::norms_of,
                                                 "one norm shared by the branches, or one each")},
                          common_fields<ParallelConfig>());
  }
  static spec::Info info() {
    return {.summary = "Mixer and feed-forward layer read the same input and are added together.",
            .paper = "Chowdhery et al.: PaLM, arXiv:2204.02311, sec. 2",
            .year = 2021,
            .forms = {.recurrent = true, .recorded = true}};
  }
  std::vector<std::string> norms() const override { return {"norm"}; }
  bool joins_branches() const override { return true; }
  bool shares_norm() const override { return norms_of == ParallelNorms::one; }
};

}  // namespace tessera::nn
