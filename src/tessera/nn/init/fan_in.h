// Variance by the size of a product: Var W = scale / fan, so that outputs have the size of inputs.
// LeCun et al. 1998 (scale 1, fan in), Glorot, Bengio 2010 (1, average), He et al. 2015,
// arXiv:1502.01852 (2, in); uniform with scale 1/3 is PyTorch's choice for linear layers.
#pragma once

#include "tessera/nn/init/init_config.h"

namespace tessera::nn {

enum class Fan { in, out, average };
enum class Draw { normal, truncated_normal, uniform };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::Fan> {
  using F = nn::Fan;
  static constexpr std::array names{std::pair{F::in, "in"}, std::pair{F::out, "out"},
                                    std::pair{F::average, "average"}};
};

template <>
struct tessera::spec::EnumNames<tessera::nn::Draw> {
  using D = nn::Draw;
  static constexpr std::array names{std::pair{D::normal, "normal"},
                                    std::pair{D::truncated_normal, "truncated_normal"},
                                    std::pair{D::uniform, "uniform"}};
};

namespace tessera::nn {

struct FanInInitConfig final : InitConfig {
  double scale = 1;
  Fan fan = Fan::in;
  Draw distribution = Draw::normal;
  double table_std = 0.02;

  static constexpr auto fields() {
    using C = FanInInitConfig;
    return std::tuple{
        spec::field("scale", &C::scale, "variance times fan", {.min = 0}),
        spec::field("fan", &C::fan, "channels read, made, or the mean of both"),
        spec::field("distribution", &C::distribution,
                    "of that variance; truncated_normal ends at 2 standard deviations of the "
                    "normal that is cut"),
        spec::field("table_std", &C::table_std, "standard deviation of rows that are looked up",
                    {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "Variance by the number of channels that a product reads or makes.",
            .paper = "He et al.: Delving Deep into Rectifiers, arXiv:1502.01852",
            .year = 2015,
            .forms = {.recurrent = true}};
  }
  spec::Init draw(const spec::ParamDecl& decl, const InitSite&) const override {
    if (decl.init.use == spec::Init::Use::table) return spec::Init::normal(table_std);
    const Fans fans(decl);
    const double n = fan == Fan::in    ? fans.in
                     : fan == Fan::out ? fans.out
                                       : (fans.in + fans.out) / 2;
    const double deviation = std::sqrt(scale / n);
    switch (distribution) {
      case Draw::normal:
        break;
      case Draw::truncated_normal: {
        // of a standard normal cut at 2: sqrt(1 - 4 phi(2) / (2 Phi(2) - 1))
        constexpr double kCut = 0.87962566103423978;
        return spec::Init::truncated_normal(deviation / kCut, 2);
      }
      case Draw::uniform: {
        const double bound = std::sqrt(3.0) * deviation;
        return spec::Init::uniform(-bound, bound);
      }
    }
    return spec::Init::normal(deviation);
  }
};

}  // namespace tessera::nn
