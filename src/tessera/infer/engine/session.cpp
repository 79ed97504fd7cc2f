#include "tessera/infer/engine/session.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "tessera/format/safetensors.h"
#include "tessera/infer/loading/weights_fingerprint.h"
#include "tessera/model/kv_quantization.h"
#include "tessera/model/call_plan.h"

namespace tessera::infer {
namespace {

using format::TensorView;

constexpr int64_t kMostRows = 1 << 16;

std::string hex(uint64_t value) {
  return fmt::format("{:016x}", value);
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

uint64_t hash_of(const text::Tokenizer& tokenizer) {
  std::string tokens;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    // ids between the tokens may stand for none
    const std::string text = tokenizer.decode(std::span(&id, 1), false);
    tokens += fmt::format("{} {} {}\n", text.size(), text, tokenizer.is_special(id));
  }
  return hash_name(tokens);
}

void add(model::State::Packed& packed, const std::string& name, const Tensor& tensor) {
  const Tensor& t = packed.values.emplace_back(tensor.to(at::kCPU).contiguous());
  packed.views.push_back(
      {name,
       ops::dtype_of(t.scalar_type()),
       t.sizes().vec(),
       {static_cast<const std::byte*>(t.const_data_ptr()), static_cast<size_t>(t.nbytes())}});
}

/// A session's file while it is read.
class Reader {
 public:
  Reader(const std::filesystem::path& path, const model::Model& model)
      : file_(format::open_safetensors(path)), model_(model) {}

  const format::TensorFile& file() const { return file_; }

  template <class... Args>
  [[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::file, "session", "{}: {}", file_.file(),
         fmt::format(format, std::forward<Args>(args)...));
  }

  const std::string& text(const std::string& key) const {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end())
      bad("not a session: \"{}\" is missing from its metadata", key);
    return found->second;
  }

  uint64_t number(const std::string& key) const {
    const std::string& value = text(key);
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size())
      bad("\"{}\" is \"{}\"; expected a number", key, value);
    return number;
  }

  /// Who made it, then whether it is whole.
  void check_origin(const std::string& fingerprint) const {
    if (text("tessera_session") != "1")
      bad("session of version \"{}\"; this program reads version 1", text("tessera_session"));
    const std::string& theirs = text("fingerprint");
    if (theirs != fingerprint) bad("made by another {}", difference(theirs, fingerprint));
    if (text("session_checksum") != session_checksum(file_.tensors(), file_.metadata()) ||
        !file_.unsupported().empty())
      bad("damaged: its content does not match its checksum");
  }

  /// Token ids of a row: a vector of int64 that the model knows.
  std::vector<int64_t> ids(const std::string& name, int64_t vocab) const {
    const TensorView& view = file_.at(name);
    if (view.dtype != DType::i64 || view.shape.size() != 1 || view.shape[0] == 0)
      bad("\"{}\" is {} of shape {}; expected token ids", name, name_of(view.dtype),
          format::shape_text(view.shape));
    std::vector<int64_t> ids(static_cast<size_t>(view.shape[0]));
    std::copy(view.data.begin(), view.data.end(), reinterpret_cast<std::byte*>(ids.data()));
    for (const int64_t id : ids)
      if (id < 0 || id >= vocab) bad("\"{}\": token id {}; expected 0 to {}", name, id, vocab - 1);
    return ids;
  }

  Tensor vector(const std::string& name, int64_t width) const {
    const TensorView& view = file_.at(name);
    if (view.dtype != DType::f32 || view.shape != std::vector<int64_t>{width})
      bad("\"{}\" is {} of shape {}; expected {} numbers of f32", name, name_of(view.dtype),
          format::shape_text(view.shape), width);
    Tensor t = at::empty({width}, at::kFloat);
    std::copy(view.data.begin(), view.data.end(), static_cast<std::byte*>(t.data_ptr()));
    return t;
  }

  /// How keys and values are kept: what was rounded for one type is not what another would hold.
  /// It means nothing where nothing is rounded.
  void check_kv_type(spec::KvType ours) const {
    const std::string& theirs = text("kv_type");
    if (model::can_quantize_kv(model::state_layout(model_.spec(), ours)) && theirs != name_of(ours))
      bad("has a KV cache of type {}, this run {}; use --kv-type {}", theirs, name_of(ours),
          theirs);
  }

  /// The types of the state's tensors, which the state itself would convert, and the inputs still
  /// to be replayed, whose width it does not know.
  void check_state(const model::State& fresh) const {
    const model::State::Packed expected = fresh.pack("");
    std::map<std::string, DType, std::less<>> types;
    for (const TensorView& view : expected.views) types[view.name] = view.dtype;
    for (const TensorView& view : file_.tensors()) {
      const bool own = view.name.starts_with("tokens.") || view.name.starts_with("source.") ||
                       view.name.starts_with("last.");
      if (own) continue;
      if (view.name.ends_with(".replay")) {
        if (view.dtype != DType::f32 || view.shape.size() != 2 || view.shape[1] == 0 ||
            view.shape[1] % model_.spec().d_model != 0)
          bad("\"{}\" is {} of shape {}; expected inputs of width {}", view.name,
              name_of(view.dtype), format::shape_text(view.shape), model_.spec().d_model);
        continue;
      }
      const auto found = types.find(view.name);
      if (found == types.end()) bad("\"{}\" is no part of this model's state", view.name);
      if (found->second != view.dtype)
        bad("\"{}\" is {}; expected {}", view.name, name_of(view.dtype), name_of(found->second));
    }
  }

 private:
  static std::string difference(std::string_view theirs, std::string_view ours) {
    std::vector<std::string> parts;
    for (const std::string_view part : {"spec", "weights", "tokenizer"}) {
      const auto value = [&](std::string_view all) {
        const size_t at = all.find(part);
        return at == std::string_view::npos ? "" : all.substr(at, all.find(' ', at) - at);
      };
      if (value(theirs) != value(ours)) parts.emplace_back(part);
    }
    return parts.empty() ? "version of the model"
                         : fmt::format("model: it differs in {}", fmt::join(parts, " and "));
  }

  format::TensorFile file_;
  const model::Model& model_;
};

}  // namespace

std::string session_checksum(const std::vector<format::TensorView>& views,
                             const format::StringMap& metadata) {
  std::vector<std::string> lines;
  for (const TensorView& view : views)
    lines.push_back(fmt::format("{} {} {} {}", view.name, name_of(view.dtype),
                                format::shape_text(view.shape),
                                hex(hash_name(text_of(view.data)))));
  std::sort(lines.begin(), lines.end());
  for (const auto& [key, value] : metadata)
    if (key != "session_checksum") lines.push_back(fmt::format("{} = {}", key, value));
  return hex(hash_name(fmt::format("{}", fmt::join(lines, "\n"))));
}

std::string fingerprint(const model::Model& model, const text::Tokenizer* tokenizer) {
  std::string weights;
  for (const auto& [decl, weight] : model.weights().all())
    weights += fmt::format("{} {} {} {}\n", decl.name, name_of(weight->dtype()),
                           format::shape_text(weight->shape()), hex(sampled_hash(*weight)));
  return fmt::format("spec:{} weights:{} tokenizer:{}",
                     hex(hash_name(model::resolve(model.spec()).dump())), hex(hash_name(weights)),
                     tokenizer != nullptr ? hex(hash_of(*tokenizer)) : "none");
}

void save_session(const std::filesystem::path& path,
                  const Session& session,
                  const std::string& fingerprint) {
  const bool stateful = session.state.rows() > 0;
  model::State::Packed packed;
  if (stateful) packed = session.state.pack(fingerprint);
  packed.metadata.insert_or_assign("tessera_session", std::string("1"));
  packed.metadata["fingerprint"] = fingerprint;
  packed.metadata["rows"] = std::to_string(session.rows.size());
  packed.metadata["seed"] = std::to_string(session.seed);
  for (size_t r = 0; r < session.rows.size(); ++r) {
    const Sequence& row = session.rows[r];
    add(packed, fmt::format("tokens.{}", r), at::tensor(row.tokens, at::kLong));
    if (!row.source.empty())
      add(packed, fmt::format("source.{}", r), at::tensor(row.source, at::kLong));
    if (row.prefix > 0) packed.metadata[fmt::format("prefix.{}", r)] = std::to_string(row.prefix);
    const auto fed =
        stateful ? session.state.length(static_cast<int64_t>(r)) - session.virtual_tokens : 0;
    if (fed == static_cast<int64_t>(row.tokens.size()))
      add(packed, fmt::format("last.{}", r), session.last.at(r).to(at::kFloat));
  }
  packed.metadata["session_checksum"] = session_checksum(packed.views, packed.metadata);
  format::write_safetensors(path, packed.views, packed.metadata);
}

Session load_session(const std::filesystem::path& path,
                     const model::Model& model,
                     const std::string& fingerprint,
                     int64_t max_pending,
                     const spec::KvOptions& kv) {
  const model::ModelSpec& spec = model.spec();
  const Reader reader(path, model);
  reader.check_origin(fingerprint);
  Session session;
  session.seed = reader.number("seed");
  session.virtual_tokens = model.virtual_tokens();
  const auto rows = static_cast<int64_t>(
      std::min<uint64_t>(reader.number("rows"), static_cast<uint64_t>(kMostRows) + 1));
  if (rows < 1 || rows > kMostRows)
    reader.bad("\"rows\" is {}; expected 1 to {}", reader.text("rows"), kMostRows);
  for (int64_t r = 0; r < rows; ++r) {
    Sequence row;
    row.tokens = reader.ids(fmt::format("tokens.{}", r), spec.vocab);
    if (spec.encoder) row.source = reader.ids(fmt::format("source.{}", r), spec.encoder->vocab);
    if (model::CallPlan(spec).reads_given()) {
      const uint64_t prefix = reader.number(fmt::format("prefix.{}", r));
      if (prefix > row.tokens.size())
        reader.bad("\"prefix.{}\" is {}; expected at most the {} tokens of the row", r, prefix,
                   row.tokens.size());
      row.prefix = static_cast<int64_t>(prefix);
    }
    session.rows.push_back(std::move(row));
  }
  session.last.resize(static_cast<size_t>(rows));
  if (!spec.no_state_reason().empty()) return session;

  reader.check_kv_type(kv.type);
  session.state = model::State(spec, rows, max_pending, at::TensorOptions().dtype(at::kFloat), kv);
  reader.check_state(session.state);
  session.state.unpack(reader.file(), fingerprint);
  for (int64_t r = 0; r < rows; ++r) {
    const Sequence& row = session.rows[static_cast<size_t>(r)];
    const auto length = static_cast<int64_t>(row.tokens.size());
    const int64_t fed = std::max<int64_t>(0, session.state.length(r) - session.virtual_tokens),
                  source = session.state.source_length(r);
    if (fed > length ||
        ((fed > 0 || source > 0) && source != static_cast<int64_t>(row.source.size())))
      reader.bad("row {}: a state of {} tokens and a source of {}, but texts of {} and {}", r, fed,
                 source, length, row.source.size());
    if (fed == length)
      session.last[static_cast<size_t>(r)] =
          reader.vector(fmt::format("last.{}", r), spec.width_out());
  }
  return session;
}

}  // namespace tessera::infer
