// What the library's own bindings reach of a loaded model, which tessera.h does not show.
#pragma once

#include <mutex>

#include "tessera/api/tessera.h"

struct tessera_model {
  tessera::Model model;
};

namespace tessera::model {
class Model;
}  // namespace tessera::model

namespace tessera {

struct LoadedAccess {
  static const model::Model& model(const Model& of);
  /// Held during a call of the model.
  static std::mutex& mutex(const Model& of);
};

}  // namespace tessera
