#include "tessera/spec/kv_type.h"

#include <array>

namespace tessera::spec {
namespace {

struct TypeEntry {
  KvType type;
  const char* name;
  DType stored;
};
constexpr std::array<TypeEntry, 6> kTypes = {{{KvType::f32, "f32", DType::f32},
                                              {KvType::f16, "f16", DType::f16},
                                              {KvType::bf16, "bf16", DType::bf16},
                                              {KvType::int8, "int8", DType::i8},
                                              {KvType::fp8, "fp8", DType::u8},
                                              {KvType::int4, "int4", DType::i16}}};

const TypeEntry& entry_of(KvType type) {
  return kTypes.at(static_cast<size_t>(type));
}

}  // namespace

const char* name_of(KvType type) {
  return entry_of(type).name;
}

std::string kv_type_names() {
  std::string names;
  for (const TypeEntry& one : kTypes) names += (names.empty() ? "" : "|") + std::string(one.name);
  return names;
}

KvType kv_type_named(std::string_view name) {
  for (const TypeEntry& one : kTypes)
    if (name == one.name) return one.type;
  fail(ErrorKind::usage, "kv-type", "found {}; expected {}", name, kv_type_names());
}

std::vector<StateDecl> packing(std::vector<StateDecl> decls) {
  for (StateDecl& decl : decls) decl.packs = true;
  return decls;
}

StateDecl stored_as(const StateDecl& decl, KvType type, std::string_view path) {
  if (type == KvType::f32 || (decl.kind == StateDecl::Kind::fixed && !decl.packs)) return decl;
  if (!decl.packs)
    fail(ErrorKind::spec, path,
         "keeps \"{}\" for computations that need all its bits; found kv-type {}; expected f32, or "
         "\"attention\" in its place, whose keys and values may be rounded",
         decl.name, name_of(type));
  StateDecl stored = decl;
  stored.dtype = entry_of(type).stored;
  if (type == KvType::int8 || type == KvType::fp8) stored.shape.back() += kKvScaleBytes;
  if (type == KvType::int4) {
    int64_t& width = stored.shape.back();
    if (width % kKvBlock != 0)
      fail(ErrorKind::spec, path,
           "keeps \"{}\" in rows of {} numbers; found kv-type int4, which takes multiples of {}; "
           "expected int8 or fp8",
           decl.name, width, kKvBlock);
    width = width / kKvBlock * kKvBlockNumbers;
  }
  return stored;
}

}  // namespace tessera::spec
