// What the source of a plugin includes: mechanisms in a shared library of their own, which
// `--plugin FILE.so` adds to those of mechanisms.def.
//
//   TESSERA_PLUGIN {
//     add<spec::Slot::mixer, FadingMeanConfig>("fading_mean");
//   }
//
// at the end of a source, once in a plugin. Configs and parts are in a namespace of their own: two
// types of one name in the program and a plugin would be taken for one. `tessera new mixer NAME`
// writes a plugin; docs/guide/plugins.md is the guide.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>

#include <torch/version.h>

#include "tessera/base/version.h"
#include "tessera/nn/parts.h"
#include "tessera/spec/fields.h"

namespace tessera::nn {

/// What is built for a slot, void for a plain one.
template <spec::Slot>
struct InterfaceOf {
  using type = void;
};
#define TESSERA_SLOT(name, Interface)    \
  template <>                            \
  struct InterfaceOf<spec::Slot::name> { \
    using type = Interface;              \
  };
#include "tessera/spec/slots.def"

template <spec::Slot S>
using BuildPart = std::unique_ptr<typename InterfaceOf<S>::type> (*)(const spec::AnyPart&,
                                                                     const Builder&);

/// How parts of a mechanism that is not in mechanisms.def are built. Call it before models are
/// built.
template <spec::Slot S>
void add_builder(std::string_view name, BuildPart<S> build);
#define TESSERA_SLOT(name, Interface) \
  extern template void add_builder<spec::Slot::name>(std::string_view, BuildPart<spec::Slot::name>);
#include "tessera/spec/slots.def"

/// Registers a mechanism by its config C, as a line of mechanisms.def does. For a slot with an
/// interface, `std::unique_ptr<Interface> build(const C&, const Builder&)` is in C's namespace.
template <spec::Slot S, class C>
void add(std::string_view name) {
  spec::add_mechanism(spec::make_mechanism<C>(S, std::string(name)));
  if constexpr (!std::is_void_v<typename InterfaceOf<S>::type>)
    add_builder<S>(name, [](const spec::AnyPart& part, const Builder& builder) {
      return build(part.as<C>(), builder);
    });
}

/// The layouts of what a plugin and the program share, as a number. Raise the first term where a
/// virtual function changes, which no size shows.
constexpr uint32_t plugin_layout() {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const size_t size :
       {size_t{1}, sizeof(spec::Mechanism), sizeof(spec::Info), sizeof(spec::Scope),
        sizeof(spec::ParamDecl), sizeof(spec::ParamList), sizeof(spec::StateDecl),
        sizeof(spec::AnyPart), sizeof(Batch), sizeof(Segment), sizeof(Context), sizeof(RowState),
        sizeof(Builder), sizeof(ops::Weight), sizeof(Tensor), sizeof(std::string)})
    hash = (hash ^ static_cast<uint32_t>(size)) * 16777619u;
  return hash;
}

/// The symbol `tessera_plugin` of a plugin. The loader finds the record in the file by its first
/// bytes and reads it before any code of the plugin runs; so every version of tessera keeps this
/// layout.
struct Plugin {
  /// The first bytes are this letter and this text, apart so that no program has them but plugins.
  static constexpr char kFirst = 't';
  static constexpr std::string_view kRest = "essera plugin\n";
  char magic[16];
  char version[24];   // of tessera
  char torch[24];     // libtorch's
  uint32_t compiler;  // __GXX_ABI_VERSION
  uint32_t layout;    // plugin_layout()
  void (*add)();
};

/// The record of a plugin that is compiled now.
constexpr Plugin make_plugin(void (*add)()) {
  Plugin plugin{{Plugin::kFirst}, {}, {}, __GXX_ABI_VERSION, plugin_layout(), add};
  const auto copy = [](std::string_view text, char* to) {
    for (const char c : text) *to++ = c;
  };
  copy(Plugin::kRest, plugin.magic + 1);
  copy(kVersion, plugin.version);
  copy(TORCH_VERSION, plugin.torch);
  return plugin;
}

}  // namespace tessera::nn

#define TESSERA_PLUGIN                                                                      \
  static void add_mechanisms_of_plugin();                                                   \
  extern "C" {                                                                              \
  extern __attribute__((visibility("default"))) const ::tessera::nn::Plugin tessera_plugin; \
  __attribute__((used)) constinit const ::tessera::nn::Plugin tessera_plugin =              \
      ::tessera::nn::make_plugin(add_mechanisms_of_plugin);                                 \
  }                                                                                         \
  static void add_mechanisms_of_plugin()
