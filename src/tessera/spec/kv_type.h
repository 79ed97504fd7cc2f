// In how many bits a state keeps keys and values: a choice of the run, not of the architecture.
#pragma once

#include "tessera/spec/mechanism.h"

namespace tessera::spec {

/// f32: as the model computes. int8, fp8 (e4m3): a byte each, and a scale of four bytes per token
/// and head. int4: four bits each, and a step and a least number per 32 of them
/// (kernels/attention/kv_rows.h).
enum class KvType { f32, f16, bf16, int8, fp8, int4 };
const char* name_of(KvType type);
/// Throws Error(usage) that lists the names.
KvType kv_type_named(std::string_view name);
/// "f32|f16|bf16|int8|fp8|int4", for help texts and messages.
std::string kv_type_names();

/// Tokens per page of a state (nn/pages.h) unless the run sets another number.
inline constexpr int64_t kDefaultKvPage = 64;

/// What a run chooses about the states it makes.
struct KvOptions {
  KvType type = KvType::f32;
  int64_t page = kDefaultKvPage;  // 0 = each tensor in one piece
};

/// Of the scale before the codes of a row of int8 or fp8.
inline constexpr int64_t kKvScaleBytes = 4;
/// Of int4: numbers of a block, and how many numbers of its tensor type (i16) it takes.
inline constexpr int64_t kKvBlock = 32, kKvBlockNumbers = 10;

/// Marks declarations of keys and values that only attention reads.
std::vector<StateDecl> packing(std::vector<StateDecl> decls);

/// The declaration as a state of this type keeps it: its storage type, and the shape of an entry in
/// numbers of that type. Other tensors than keys and values stay as they are. Throws Error(spec)
/// with `path` for entries per token that cannot be kept so.
StateDecl stored_as(const StateDecl& decl, KvType type, std::string_view path);

}  // namespace tessera::spec
