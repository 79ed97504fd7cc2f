#include "tessera/convert/generation_config.h"

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/convert/foreign_config.h"

namespace tessera::convert {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;

/// null, an id, or a list of one.
std::optional<int64_t> id_of(const spec::Json& config,
                             const char* key,
                             int64_t vocab,
                             const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return std::nullopt;
  const spec::Json& value = found->is_array() && found->size() == 1 ? found->front() : *found;
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= vocab)
    fail(ErrorKind::file, where, "\"{}\" is {}; expected one id from 0 to {}", key, found->dump(),
         vocab - 1);
  return value.get<int64_t>();
}

}  // namespace

GenerationConfig read_generation_config(const std::filesystem::path& folder, int64_t vocab) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::filesystem::path path = folder / name;
    if (!std::filesystem::is_regular_file(path)) continue;
    const std::string where = path.string();
    const spec::Json config = parse_hf_config(read_text_file(path, kMaxBytes), where);
    if (!config.is_object())
      fail(ErrorKind::file, where, "{}; expected an object", spec::kind_of(config));
    GenerationConfig found{id_of(config, "forced_bos_token_id", vocab, where),
                           id_of(config, "forced_eos_token_id", vocab, where)};
    // how older files say it
    const auto older = config.find("force_bos_token_to_be_generated");
    if (!found.forced_begin && older != config.end() && *older == true)
      found.forced_begin = id_of(config, "bos_token_id", vocab, where);
    return found;
  }
  return {};
}

}  // namespace tessera::convert
