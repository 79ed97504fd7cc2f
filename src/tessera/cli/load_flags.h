// Loading a model: the same flags for every command that loads one. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "tessera/cli/cli.h"
#include "tessera/convert/checkpoint.h"

namespace tessera::cli {

/// --ignore-key, also for commands that load models by a recipe.
inline CLI::Option* add_ignore_key(CLI::App& app, std::vector<std::string>& keys) {
  return app
      .add_option("--ignore-key", keys,
                  "read config.json or GGUF metadata as if it had no such key; repeatable, * = any "
                  "text")
      ->allow_extra_args(false);
}

struct LoadFlags {
  std::string families;

  void add(CLI::App& app) {
    add_families(app, families);
    add_ignore_key(app, keys_.ignore);
    app.add_flag("--strict", keys_.strict,
                 "refuse keys of config.json or GGUF metadata that no family knows");
    app.add_option("--spec", spec_,
                   "the spec of a model.safetensors of tessera whose metadata were lost");
  }
  /// The flags of add() in an app, for commands that exclude them.
  static std::vector<CLI::Option*> of(CLI::App& app) {
    return {app.get_option("--families"), app.get_option("--ignore-key"),
            app.get_option("--strict"), app.get_option("--spec")};
  }
  convert::LoadOptions options() const {
    convert::LoadOptions options = others();
    options.spec = spec_;
    return options;
  }
  /// For further models of the command: draft models, embedders, rerankers.
  convert::LoadOptions others() const {
    convert::LoadOptions options{families};
    options.keys = keys_;
    return options;
  }

 private:
  convert::KeyOptions keys_;
  std::string spec_;
};

}  // namespace tessera::cli
