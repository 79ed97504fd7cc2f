#include "tessera/cli/delayed_library.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <mutex>

#include "tessera/base/error.h"

// What cmake/delayed_library.sh generates.
extern "C" {
extern const char tessera_delayed_library[];    // file name
extern const char tessera_delayed_functions[];  // names, each ended by 0
extern const char tessera_delayed_jumps[];      // kJumpBytes for each function
extern void* tessera_delayed_slots[];           // where the jumps lead
extern const uint64_t tessera_delayed_function_count;

/// A variable, vtable or type_info: zeros until the bytes of the library's are copied.
struct TesseraDelayedObject {
  void* here;
  uint64_t bytes;
};
extern const char tessera_delayed_object_names[];
extern const TesseraDelayedObject tessera_delayed_objects[];
extern const uint64_t tessera_delayed_object_count;

/// Called by the code of a slot's first call: the address of the function.
[[gnu::visibility("hidden")]] void* tessera_delayed_first_call(uint64_t function);
}

namespace tessera::cli::delayed {
namespace {

constexpr size_t kJumpBytes = 16;

const char* after(const char* name) {
  return name + std::strlen(name) + 1;
}

void (*&opened())() {
  static void (*call)() = nullptr;
  return call;
}

void resolve_all(void* library) {
  const char* name = tessera_delayed_object_names;
  for (uint64_t i = 0; i < tessera_delayed_object_count; ++i, name = after(name)) {
    const auto& [here, bytes] = tessera_delayed_objects[i];
    if (const void* there = dlsym(library, name)) std::memcpy(here, there, bytes);
  }
  name = tessera_delayed_functions;
  for (uint64_t i = 0; i < tessera_delayed_function_count; ++i, name = after(name))
    if (void* function = dlsym(library, name))
      __atomic_store_n(&tessera_delayed_slots[i], function, __ATOMIC_RELEASE);
}

}  // namespace

void open() {
  static std::once_flag once;
  std::call_once(once, [] {
    void* const library = dlopen(tessera_delayed_library, RTLD_LAZY | RTLD_GLOBAL);
    if (library == nullptr) {
      const char* error = dlerror();
      fail(ErrorKind::file, "libtorch",
           "{} cannot be opened: {}; expected the libtorch that tessera was built with",
           tessera_delayed_library, error != nullptr ? error : "no reason is known");
    }
    resolve_all(library);
    if (opened() != nullptr) opened()();
  });
}

void replace(const void* function, const void* instead) {
  const auto offset =
      static_cast<size_t>(static_cast<const char*>(function) - tessera_delayed_jumps);
  require(offset % kJumpBytes == 0 && offset / kJumpBytes < tessera_delayed_function_count,
          "libtorch", "a function that {} does not have", tessera_delayed_library);
  tessera_delayed_slots[offset / kJumpBytes] = const_cast<void*>(instead);
}

void when_open(void (*call)()) {
  opened() = call;
}

}  // namespace tessera::cli::delayed

void* tessera_delayed_first_call(uint64_t function) {
  using namespace tessera;
  cli::delayed::open();
  const char* name = tessera_delayed_functions;
  for (uint64_t i = 0; i < function; ++i) name += std::strlen(name) + 1;
  void* const address = dlsym(RTLD_DEFAULT, name);
  if (address == nullptr)
    fail(ErrorKind::file, "libtorch",
         "{} has no function {}; expected the libtorch that tessera was built with",
         tessera_delayed_library, name);
  return address;
}
