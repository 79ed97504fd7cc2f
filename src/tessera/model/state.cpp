#include "tessera/model/state.h"

#include <algorithm>
#include <set>

#include "tessera/format/safetensors.h"
#include "tessera/model/kv_quantization.h"
#include "tessera/ops/weights/weight.h"

namespace tessera::model {
namespace {

bool same_layout(const std::vector<BranchState>& a, const std::vector<BranchState>& b) {
  const auto same_tensor = [](const spec::StateDecl& x, const spec::StateDecl& y) {
    return x.name == y.name && x.kind == y.kind && x.shape == y.shape && x.keep == y.keep &&
           x.every == y.every && x.first == y.first && x.dtype == y.dtype && x.start == y.start;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const BranchState& x, const BranchState& y) {
                      return x.name == y.name && x.selective == y.selective &&
                             std::equal(x.tensors.begin(), x.tensors.end(), y.tensors.begin(),
                                        y.tensors.end(), same_tensor);
                    });
}

}  // namespace

State::State(const ModelSpec& spec,
             int64_t rows,
             int64_t max_pending,
             at::TensorOptions options,
             const spec::KvOptions& kv)
    : pool_(nn::PagePool::make(kv.page)),
      type_(kv.type),
      max_pending_(max_pending),
      options_(options) {
  if (const std::string reason = spec.no_state_reason(); !reason.empty())
    fail(ErrorKind::spec, "state",
         "this model cannot continue from a state: {}; compute whole sequences instead", reason);
  layout_ = std::make_shared<const std::vector<BranchState>>(state_layout(spec, kv.type));
  lengths_.resize(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<nn::RowState> row;
    for (const BranchState& branch : *layout_)
      row.emplace_back(branch.tensors, max_pending, options, pool_, branch.selective);
    rows_.push_back(std::move(row));
  }
}

int64_t State::source_length(int64_t row) const {
  int64_t length = 0;
  for (const nn::RowState& branch : rows_.at(static_cast<size_t>(row)))
    length = std::max(length, branch.source_length());
  return length;
}

void State::commit(int64_t row, int64_t n) {
  auto& length = lengths_.at(static_cast<size_t>(row));
  if (n < 0 || n > length.pending)
    fail(ErrorKind::input, "state", "commit of {} tokens; row {} has {} pending", n, row,
         length.pending);
  // a branch that sees only some tokens has fewer of them pending
  for (nn::RowState& branch : rows_[static_cast<size_t>(row)])
    branch.commit(branch.seen_before(length.committed + n) - (branch.length() - branch.pending()));
  length.committed += n;
  length.pending = 0;
}

State State::select(const std::vector<int64_t>& rows) const {
  State out;
  out.layout_ = layout_;
  out.pool_ = pool_;
  out.type_ = type_;
  out.max_pending_ = max_pending_;
  out.options_ = options_;
  out.lasting_ = lasting_;
  for (const int64_t r : rows) {
    std::vector<nn::RowState> copy;
    for (const nn::RowState& branch : rows_[static_cast<size_t>(checked(r))])
      copy.push_back(branch.clone());
    out.rows_.push_back(std::move(copy));
    out.lengths_.push_back(lengths_[static_cast<size_t>(r)]);
  }
  return out;
}

int64_t State::checked(int64_t row) const {
  if (row < 0 || row >= rows())
    fail(ErrorKind::input, "state", "row {}; expected 0 to {}", row, rows() - 1);
  return row;
}

void State::check_alike(const State& other) const {
  if (type_ != other.type_)
    fail(ErrorKind::input, "state",
         "rows with a KV cache of type {} cannot join rows with type {}; use the kv-type that they "
         "were made with",
         name_of(other.type_), name_of(type_));
  if (max_pending_ != other.max_pending_)
    fail(ErrorKind::input, "state", "rows with max_pending {} do not join rows with {}",
         other.max_pending_, max_pending_);
  if (!layout_ || !other.layout_ || !same_layout(*layout_, *other.layout_))
    fail(ErrorKind::input, "state", "rows of another spec do not join these");
}

void State::append(const State& other) {
  check_alike(other);
  State copy = other.fork();
  for (auto& row : copy.rows_) rows_.push_back(std::move(row));
  lengths_.insert(lengths_.end(), copy.lengths_.begin(), copy.lengths_.end());
}

void State::put(int64_t row, const State& from, int64_t from_row) {
  checked(row);
  check_alike(from);
  State copy = from.select({from_row});
  rows_[static_cast<size_t>(row)] = std::move(copy.rows_[0]);
  lengths_[static_cast<size_t>(row)] = copy.lengths_[0];
}

bool State::can_truncate(int64_t row, int64_t n) const {
  const Length& length = lengths_[static_cast<size_t>(checked(row))];
  if (length.spoilt || length.pending > 0 || n < 0 || n > length.committed) return false;
  if (n == length.committed) return true;
  using Kind = spec::StateDecl::Kind;
  for (size_t b = 0; b < layout_->size(); ++b) {
    const int64_t seen = rows_[static_cast<size_t>(row)][b].length();
    for (const spec::StateDecl& decl : (*layout_)[b].tensors)
      if (decl.kind == Kind::fixed ||
          (decl.kind == Kind::per_token && decl.kept(seen) < decl.entries(seen)))
        return false;
  }
  return true;
}

State State::truncated_copy(int64_t row, int64_t n) const {
  if (!can_truncate(row, n))
    fail(ErrorKind::input, "state",
         "row {} holds {} tokens and cannot be truncated to {}: part of its state is overwritten; "
         "fork the state at that length",
         row, length(row), n);
  State out = select({row});
  if (n == length(row)) return out;
  for (nn::RowState& branch : out.rows_[0]) branch = branch.truncated_copy(branch.seen_before(n));
  out.lengths_[0].committed = n;
  return out;
}

void State::remove(int64_t row) {
  checked(row);
  rows_.erase(rows_.begin() + row);
  lengths_.erase(lengths_.begin() + row);
}

State State::fork() const {
  std::vector<int64_t> all;
  for (int64_t r = 0; r < rows(); ++r) all.push_back(r);
  return select(all);
}

void State::detach() {
  for (auto& row : rows_)
    for (nn::RowState& branch : row) branch.detach();
}

void State::to(at::Device device) {
  options_ = options_.device(device);
  lasting_.clear();
  for (auto& row : rows_)
    for (nn::RowState& branch : row) branch.to(device);
}

int64_t State::bytes() const {
  int64_t bytes = 0;
  for (const auto& row : rows_)
    for (const nn::RowState& branch : row) bytes += branch.bytes();
  return bytes;
}

std::set<const nn::Page*> State::all_pages() const {
  std::set<const nn::Page*> all;
  for (const auto& row : rows_)
    for (const nn::RowState& branch : row)
      for (const nn::Page* page : branch.pages()) all.insert(page);
  return all;
}

int64_t State::pages() const {
  return static_cast<int64_t>(all_pages().size());
}

int64_t State::page_bytes() const {
  int64_t bytes = 0;
  for (const nn::Page* page : all_pages()) bytes += page->bytes();
  return bytes;
}

int64_t State::fixed_bytes() const {
  int64_t bytes = 0;
  for (const auto& row : rows_)
    for (const nn::RowState& branch : row) bytes += branch.fixed_bytes();
  return bytes;
}

void State::compact() {
  for (auto& row : rows_)
    for (nn::RowState& branch : row) branch.compact();
}

State::Packed State::pack(const std::string& fingerprint) const {
  Packed out;
  out.metadata = {{"tessera_state", "1"},
                  {"fingerprint", fingerprint},
                  {"rows", std::to_string(rows())},
                  {"kv_type", name_of(type_)}};
  for (int64_t r = 0; r < rows(); ++r) {
    if (lengths_[static_cast<size_t>(r)].spoilt)
      fail(ErrorKind::input, "state",
           "row {} was left half advanced by a call that failed, and cannot be saved", r);
    out.metadata[fmt::format("length.{}", r)] = std::to_string(length(r));
    for (size_t b = 0; b < layout_->size(); ++b)
      for (const auto& [name, tensor] : rows_[static_cast<size_t>(r)][b].save()) {
        out.values.push_back(tensor.to(at::kCPU).contiguous());
        const Tensor& t = out.values.back();
        out.views.push_back(
            {fmt::format("{}.{}.{}", r, b, name),
             ops::dtype_of(t.scalar_type()),
             t.sizes().vec(),
             {static_cast<const std::byte*>(t.const_data_ptr()), static_cast<size_t>(t.nbytes())}});
      }
  }
  return out;
}

void State::save(const std::filesystem::path& path, const std::string& fingerprint) const {
  const Packed packed = pack(fingerprint);
  format::write_safetensors(path, packed.views, packed.metadata);
}

void State::load(const std::filesystem::path& path, const std::string& fingerprint) {
  unpack(format::open_safetensors(path), fingerprint);
}

void State::unpack(const format::TensorFile& file, const std::string& fingerprint) {
  const auto text = [&](const std::string& key) {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end())
      fail(ErrorKind::file, "state", "{}: not a saved state: \"{}\" is missing", file.file(), key);
    return found->second;
  };
  const auto number = [&](const std::string& key) {
    const std::string value = text(key);
    if (value.empty() || value.size() > 15 ||
        value.find_first_not_of("0123456789") != std::string::npos)
      fail(ErrorKind::file, "state", "{}: \"{}\" is {}; expected a number", file.file(), key,
           value);
    return std::stoll(value);
  };
  if (text("tessera_state") != "1")
    fail(ErrorKind::file, "state", "{}: state of version \"{}\"; this program reads version 1",
         file.file(), text("tessera_state"));
  if (text("fingerprint") != fingerprint)
    fail(ErrorKind::file, "state", "{}: was saved by another model, weights or tokenizer",
         file.file());
  // older files have no type, which has no meaning without keys and values
  if (const auto found = file.metadata().find("kv_type");
      can_quantize_kv(*layout_) &&
      (found == file.metadata().end() ? "f32" : found->second) != name_of(type_))
    fail(ErrorKind::file, "state",
         "{}: keeps keys and values as {}, this state as {}; load it into one of kv-type {}",
         file.file(), found == file.metadata().end() ? "f32" : found->second, name_of(type_),
         found == file.metadata().end() ? "f32" : found->second);
  if (number("rows") != rows())
    fail(ErrorKind::file, "state", "{}: holds {} rows; this state has {}", file.file(),
         number("rows"), rows());
  for (int64_t r = 0; r < rows(); ++r) unpack_row(file, r, number(fmt::format("length.{}", r)));
}

void State::unpack_row(const format::TensorFile& file, int64_t row, int64_t length) {
  for (size_t b = 0; b < layout_->size(); ++b)
    rows_[static_cast<size_t>(row)][b].load(
        [&](const std::string& name) {
          const auto* view = file.find(fmt::format("{}.{}.{}", row, b, name));
          if (view == nullptr) return Tensor();
          Tensor t = at::empty(view->shape, ops::scalar_type_of(view->dtype));
          std::copy(view->data.begin(), view->data.end(), static_cast<std::byte*>(t.data_ptr()));
          // quantized and half types are compared exactly
          const bool plain = t.scalar_type() == at::kFloat || t.scalar_type() == at::kDouble;
          return plain ? t.to(options_) : t.to(options_.device());
        },
        length);
  for (size_t b = 0; b < layout_->size(); ++b) {
    const nn::RowState& branch = rows_[static_cast<size_t>(row)][b];
    const bool reads = std::any_of(
        (*layout_)[b].tensors.begin(), (*layout_)[b].tensors.end(),
        [](const auto& decl) { return decl.kind == spec::StateDecl::Kind::per_source; });
    if (reads && branch.source_length() != source_length(row))
      fail(ErrorKind::file, "state", "{}: layers of row {} hold sources of {} and {} tokens",
           file.file(), row, branch.source_length(), source_length(row));
  }
  lengths_[static_cast<size_t>(row)] = {length, 0, false};
}

void State::check(const nn::Batch& batch) const {
  std::set<int64_t> seen;
  for (const nn::Segment& s : batch.segments) {
    if (s.row < 0 || s.row >= rows())
      fail(ErrorKind::input, "state", "row {}; expected 0 to {}", s.row, rows() - 1);
    if (!seen.insert(s.row).second)
      fail(ErrorKind::input, "state",
           "row {} appears twice in one call; give its tokens as one segment", s.row);
    const Length& length = lengths_[static_cast<size_t>(s.row)];
    const int64_t held = length.committed + length.pending;
    if (length.spoilt)
      fail(ErrorKind::input, "state",
           "row {} was left half advanced by a call that failed; continue from a fork made before "
           "it",
           s.row);
    if (s.start != held)
      fail(ErrorKind::input, "state", "row {} holds {} tokens; the call starts at position {}",
           s.row, held, s.start);
    if (!s.pending && length.pending > 0)
      fail(ErrorKind::input, "state",
           "row {} has {} pending tokens; commit them before others follow", s.row, length.pending);
    if (s.pending && length.pending + s.length > max_pending_)
      fail(ErrorKind::input, "state",
           "row {} would have {} pending tokens; this state was made for at most {}", s.row,
           length.pending + s.length, max_pending_);
  }
}

nn::StateRows State::branch(size_t index, const nn::Batch& batch) {
  nn::StateRows rows;
  for (const nn::Segment& segment : batch.segments)
    rows.push_back(&rows_.at(static_cast<size_t>(segment.row)).at(index));
  return rows;
}

void State::invalidate(const nn::Batch& batch) {
  for (const nn::Segment& s : batch.segments) lengths_.at(static_cast<size_t>(s.row)).spoilt = true;
}

void State::advance(const nn::Batch& batch) {
  for (const nn::Segment& s : batch.segments) {
    Length& length = lengths_.at(static_cast<size_t>(s.row));
    (s.pending ? length.pending : length.committed) += s.length;
    if (!holds_ids()) continue;
    nn::RowState& ids = rows_[static_cast<size_t>(s.row)].back();
    ids.begin_call(s.pending);
    ids.tokens(0).append(batch.ids_N.narrow(0, s.begin, s.length).to(options_));
    ids.end_call(Tensor(), s);
  }
}

int64_t State::slot(int64_t row) const {
  const std::vector<nn::RowState>& branches = rows_[static_cast<size_t>(checked(row))];
  return branches.empty() ? -1 : branches.front().slot();
}

void State::settle(int64_t row, const Homes& homes, int64_t slot) {
  std::vector<nn::RowState>& branches = rows_[static_cast<size_t>(checked(row))];
  for (size_t b = 0; b < branches.size(); ++b) branches[b].settle(homes[b], slot);
}

bool State::ready(int64_t row) {
  std::vector<nn::RowState>& branches = rows_[static_cast<size_t>(checked(row))];
  return std::all_of(branches.begin(), branches.end(),
                     [](nn::RowState& branch) { return branch.ready(); });
}

void State::grew(const nn::Batch& batch) {
  for (const nn::Segment& s : batch.segments) {
    for (nn::RowState& branch : rows_.at(static_cast<size_t>(s.row))) branch.grew();
    ++lengths_.at(static_cast<size_t>(s.row)).committed;
  }
}

bool State::holds_ids() const {
  return layout_ && !layout_->empty() && layout_->back().name == kIds;
}

std::vector<std::vector<int64_t>> State::last_ids(const nn::Batch& batch) const {
  std::vector<std::vector<int64_t>> all(batch.segments.size());
  if (!holds_ids()) return all;
  const int64_t keep = layout_->back().tensors.front().keep;
  for (size_t i = 0; i < all.size(); ++i) {
    const nn::RowState& row = rows_.at(static_cast<size_t>(batch.segments[i].row)).back();
    const int64_t length = row.length(), from = std::max<int64_t>(0, length - keep);
    if (length == 0) continue;
    const Tensor ids = row.tokens(0).joined(from, length).to(at::kCPU, at::kLong).contiguous();
    all[i].assign(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.numel());
  }
  return all;
}

}  // namespace tessera::model
