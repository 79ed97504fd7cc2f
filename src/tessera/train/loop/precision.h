// Product types of a training precision.
#pragma once

#include "tessera/ops/weights/product.h"
#include "tessera/train/recipe/train_recipe.h"

namespace tessera::train {

inline ops::ProductType product_type(Precision precision) {
  switch (precision) {
    case Precision::bf16:
      return ops::ProductType::bf16;
    case Precision::fp16:
      return ops::ProductType::fp16;
    case Precision::float32:
    case Precision::tf32:  // ops::AllowTf32
      break;
  }
  return ops::ProductType::float32;
}

}  // namespace tessera::train
