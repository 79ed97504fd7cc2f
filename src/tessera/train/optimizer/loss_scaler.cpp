#include "tessera/train/optimizer/loss_scaler.h"

#include "tessera/base/error.h"

namespace tessera::train {

bool LossScaler::update(bool finite) {
  constexpr int64_t kMostSkipped = 20;
  if (finite) {
    skipped_ = 0;
    if (++good_ == growth_) {
      scale_ *= 2;
      good_ = 0;
    }
    return true;
  }
  scale_ /= 2;
  good_ = 0;
  ++skipped_;
  if (skipped_ == kMostSkipped || scale_ < 1)
    fail(ErrorKind::input, "train",
         "gradients in float16 are not finite in {} updates in a row, the loss {} {} by now: lower "
         "optimizer.lr, or train in float32",
         skipped_, scale_ < 1 ? "divided by" : "multiplied by", scale_ < 1 ? 1 / scale_ : scale_);
  return false;
}

spec::Json LossScaler::to_json() const {
  return {{"scale", scale_}, {"good", good_}, {"skipped", skipped_}};
}

void LossScaler::restore(const spec::Json& json, std::string_view where) {
  const auto number = [&](const char* name, double least) {
    const auto found = json.is_object() ? json.find(name) : json.end();
    if (!json.is_object() || found == json.end() || !found->is_number() ||
        !(found->get<double>() >= least))
      fail(ErrorKind::file, "checkpoint", "{}: \"loss_scale.{}\" is missing or no number from {}",
           where, name, least);
    return found->get<double>();
  };
  scale_ = number("scale", 1);
  good_ = static_cast<int64_t>(number("good", 0));
  skipped_ = static_cast<int64_t>(number("skipped", 0));
}

}  // namespace tessera::train
