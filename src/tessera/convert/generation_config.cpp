#include "tessera/convert/generation_config.h"

#include <algorithm>
#include <cmath>

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

std::vector<int64_t> ends_of(const spec::Json& config, int64_t vocab, const std::string& where) {
  std::vector<int64_t> ends;
  const auto found = config.find("eos_token_id");
  if (found == config.end() || found->is_null()) return ends;
  const spec::Json all = found->is_array() ? *found : spec::Json::array({*found});
  constexpr size_t kMostEnds = 1024;
  for (const spec::Json& value : all) {
    if (!value.is_number_integer() || all.size() > kMostEnds)
      fail(ErrorKind::file, where, "\"eos_token_id\" is {}; expected an id, or a list of them",
           found->dump().substr(0, 100));
    const bool said = !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) &&
                      value.get<int64_t>() >= 0 && value.get<int64_t>() < vocab;
    if (said && std::find(ends.begin(), ends.end(), value.get<int64_t>()) == ends.end())
      ends.push_back(value.get<int64_t>());
  }
  return ends;
}

/// null, or a number of this range.
std::optional<double> number_of(const spec::Json& config,
                                const char* key,
                                double least,
                                double most,
                                const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (!found->is_number() || !(found->get<double>() >= least && found->get<double>() <= most))
    fail(ErrorKind::file, where, "\"{}\" is {}; expected a number from {} to {}", key,
         found->dump().substr(0, 100), least, most);
  return found->get<double>();
}

void read_sampling(GenerationConfig& out, const spec::Json& config, const std::string& where) {
  if (const auto found = config.find("do_sample"); found != config.end() && !found->is_null()) {
    if (!found->is_boolean())
      fail(ErrorKind::file, where, "\"do_sample\" is {}; expected true or false",
           found->dump().substr(0, 100));
    out.do_sample = found->get<bool>();
  }
  out.temperature = number_of(config, "temperature", 0, 1e6, where);
  out.top_p = number_of(config, "top_p", 0, 1, where);
  out.min_p = number_of(config, "min_p", 0, 1, where);
  out.typical_p = number_of(config, "typical_p", 0, 1, where);
  out.repetition_penalty = number_of(config, "repetition_penalty", 1e-6, 1e6, where);
  if (const auto k = number_of(config, "top_k", -1, 1e9, where)) {
    if (*k != std::floor(*k))
      fail(ErrorKind::file, where, "\"top_k\" is {}; expected a whole number", *k);
    out.top_k = std::max<int64_t>(0, static_cast<int64_t>(*k));
  }
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
                           id_of(config, "forced_eos_token_id", vocab, where),
                           ends_of(config, vocab, where)};
    read_sampling(found, config, where);
    // how older files say it
    const auto older = config.find("force_bos_token_to_be_generated");
    if (!found.forced_begin && older != config.end() && *older == true)
      found.forced_begin = id_of(config, "bos_token_id", vocab, where);
    return found;
  }
  return {};
}

}  // namespace tessera::convert
