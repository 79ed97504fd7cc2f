#include "tessera/nn/plugins.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>

#include <ATen/Context.h>
#include <dlfcn.h>
#include <elf.h>

#include "tessera/base/mapped_file.h"
#include "tessera/nn/plugin.h"
#include "tessera/nn/registry.h"

namespace tessera::nn {
namespace {

/// Whether a segment that is mapped lies within a file of `size` bytes, at an address that fits.
bool fits(const Elf64_Phdr& segment, size_t size) {
  const uint64_t align = std::max<uint64_t>(segment.p_align, 1);
  return segment.p_offset <= size && segment.p_filesz <= size - segment.p_offset &&
         segment.p_filesz <= segment.p_memsz && (align & (align - 1)) == 0 &&
         (segment.p_offset - segment.p_vaddr) % align == 0;
}

/// Whether a file is a shared library with all of its segments: the dynamic linker maps them
/// without a look at the size of the file.
bool is_library(std::span<const std::byte> bytes) {
  Elf64_Ehdr head;
  if (bytes.size() < sizeof(head)) return false;
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64 ||
      head.e_type != ET_DYN || head.e_phentsize != sizeof(Elf64_Phdr) ||
      head.e_phoff > bytes.size() ||
      head.e_phnum > (bytes.size() - head.e_phoff) / sizeof(Elf64_Phdr))
    return false;
  std::optional<Elf64_Phdr> mapped, dynamic;  // the last mapped segment
  for (size_t i = 0; i < head.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, bytes.data() + head.e_phoff + i * sizeof(segment), sizeof(segment));
    if (segment.p_type == PT_DYNAMIC) dynamic = segment;
    if (segment.p_type != PT_LOAD) continue;
    // in the order of addresses, the first with the header
    const bool next = mapped ? segment.p_vaddr >= mapped->p_vaddr + mapped->p_memsz
                             : segment.p_offset == 0 && segment.p_vaddr == 0;
    if (!next || !fits(segment, bytes.size())) return false;
    mapped = segment;
  }
  return mapped && dynamic && dynamic->p_vaddr < mapped->p_vaddr + mapped->p_memsz &&
         dynamic->p_memsz <= mapped->p_vaddr + mapped->p_memsz - dynamic->p_vaddr;
}

/// The record in the bytes of a file, nullopt where there is none.
std::optional<Plugin> record_of(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const volatile char first = Plugin::kFirst;  // or the compiler would join it with the rest
  std::string magic(1, first);
  magic.append(Plugin::kRest);
  magic.resize(sizeof(Plugin::magic));
  const size_t at = text.find(magic);
  if (at == std::string_view::npos || text.size() - at < sizeof(Plugin)) return std::nullopt;
  Plugin plugin{};
  std::memcpy(&plugin, text.data() + at, sizeof(Plugin));
  return plugin;
}

/// Up to the first NUL.
template <size_t N>
std::string_view text_of(const char (&field)[N]) {
  return {field, static_cast<size_t>(std::find(field, field + N, '\0') - field)};
}

/// "2.15" of "2.15.1": a wheel takes every patch release of the libtorch that it was built with.
std::string_view release_of(std::string_view version) {
  const size_t minor = version.find('.');
  return version.substr(0, minor == version.npos ? minor : version.find('.', minor + 1));
}

void check_record(const Plugin& plugin, const std::string& file) {
  const auto refuse = [&](auto found, auto expected, const char* of) {
    fail(ErrorKind::file, "plugin", "{}: built with {} {}; expected {} (build it again)", file, of,
         found, expected);
  };
  const auto expect = [&](auto found, auto expected, const char* of) {
    if (found != expected) refuse(found, expected, of);
  };
  expect(text_of(plugin.version), std::string_view(kVersion), "tessera");
  if (release_of(text_of(plugin.torch)) != release_of(TORCH_VERSION))
    refuse(text_of(plugin.torch), std::string_view(TORCH_VERSION), "libtorch");
  expect(plugin.compiler, uint32_t{__GXX_ABI_VERSION}, "compiler ABI");
  expect(plugin.layout, plugin_layout(), "headers of tessera with layout");
}

/// The reason of the last failure, without the path that it begins with.
std::string loader_error(const std::string& file) {
  const char* const text = dlerror();
  std::string reason = text == nullptr ? "unknown error" : text;
  if (reason.starts_with(file + ": ")) reason.erase(0, file.size() + 2);
  return reason;
}

}  // namespace

void load_plugin(const std::filesystem::path& path) {
  static std::mutex mutex;
  static std::set<std::filesystem::path> loaded;
  const std::lock_guard lock(mutex);
  std::error_code ignored;
  const std::filesystem::path real = std::filesystem::canonical(path, ignored);
  if (!real.empty() && loaded.contains(real)) return;
  const std::string file = path.string();
  if (!std::filesystem::exists(path, ignored))
    fail(ErrorKind::file, "plugin", "{}: no such file; expected a plugin (tessera new mixer NAME)",
         file);
  {
    const auto mapped =
        std::filesystem::is_regular_file(path, ignored) ? MappedFile::open(path) : nullptr;
    const std::optional<Plugin> plugin = mapped != nullptr && is_library(mapped->bytes())
                                             ? record_of(mapped->bytes())
                                             : std::nullopt;
    if (!plugin)
      fail(ErrorKind::file, "plugin",
           "{}: not a plugin of tessera; expected a shared library with TESSERA_PLUGIN "
           "(tessera new mixer NAME)",
           file);
    check_record(*plugin, file);
  }
  register_mechanisms();
  at::globalContext();  // where libtorch is opened at its first call, the plugin needs it now
  void* const handle = dlopen(real.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    fail(ErrorKind::file, "plugin",
         "{}: cannot be loaded: {}; expected one built against this tessera", file,
         loader_error(real.string()));
  const auto* const plugin = static_cast<const Plugin*>(dlsym(handle, "tessera_plugin"));
  if (plugin == nullptr)
    fail(ErrorKind::file, "plugin",
         "{}: no symbol tessera_plugin; expected TESSERA_PLUGIN in a source", file);
  try {
    plugin->add();
  } catch (const Error& error) {
    fail(ErrorKind::file, "plugin", "{}: {}; expected a name that is free", file, error.what());
  }
  loaded.insert(real);
}

}  // namespace tessera::nn
