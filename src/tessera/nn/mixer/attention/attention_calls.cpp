#include "tessera/nn/mixer/attention/attention_calls.h"

#include "tessera/kernels/attention/kv_rows.h"
#include "tessera/ops/attention/kv_rows.h"

namespace tessera::nn {

AttentionCalls::AttentionCalls(const Batch& batch)
    : keys(batch.segments.size()), values(batch.segments.size()) {
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    const Segment& s = batch.segments[i];
    longest = std::max(longest, s.start + s.length);
    first_unit.push_back(units.size());
    const auto ways = branches_of(batch, s);
    if (ways.empty()) units.push_back({i, s.begin, s.length, s.start, {}});
    for (size_t t = 0; t < ways.size(); ++t)
      units.push_back({i, s.begin + static_cast<int64_t>(t), 1,
                       s.start + static_cast<int64_t>(ways[t].size()) - 1, ways[t]});
  }
  first_unit.push_back(units.size());
  spans.resize(units.size()), calls.resize(units.size());
  for (size_t u = 0; u < units.size(); ++u)
    calls[u].T = units[u].length, calls[u].first_position = units[u].position;
}

std::shared_ptr<AttentionCalls> AttentionCalls::of(Context& context) {
  return context.once<std::shared_ptr<AttentionCalls>>(
      "attention steps", [&] { return std::make_shared<AttentionCalls>(*context.batch); });
}

int64_t AttentionCalls::floats(int64_t heads, int64_t width) const {
  std::vector<kernels::Attention> sizes = calls;
  for (kernels::Attention& one : sizes) one.H = heads, one.V = width;
  return kernels::team_floats(sizes.data(), static_cast<int64_t>(sizes.size()), longest);
}

void AttentionCalls::find(const Segment& s, size_t index, const Entries& of, int64_t window) {
  const int64_t end = s.start + s.length,
                from = window > 0 ? std::max<int64_t>(0, s.start - window + 1) : 0;
  const DType type = ops::kv_dtype(of.keys.stored_type());
  const int64_t row = kernels::kv_row_bytes(type, of.width),
                value_row =
                    of.values != nullptr ? kernels::kv_row_bytes(type, of.value_width) : row;
  std::vector<TokenBuffer::Run>&held = keys[index], &held_values = values[index];
  for (size_t u = first_unit[index]; u < first_unit[index + 1]; ++u) {
    const QueryUnit& unit = units[u];
    std::vector<kernels::KeySpan>& found = spans[u];
    found.clear();
    // entries from `first` on, as those of positions from `position` on
    const auto add = [&](int64_t first, int64_t last, int64_t position) {
      held.clear(), held_values.clear();
      of.keys.runs(first, last, held);
      if (of.values != nullptr) of.values->runs(first, last, held_values);
      for (size_t j = 0; j < held.size(); ++j)
        found.push_back({held[j].data, of.values != nullptr ? held_values[j].data : held[j].data,
                         of.groups * row, row, of.groups * value_row, value_row,
                         position + held[j].first - first, held[j].count, type});
    };
    add(from, unit.way.empty() ? end : s.start, from);
    for (size_t j = 0, k = 0; j < unit.way.size(); j = k) {
      while (k < unit.way.size() && unit.way[k] - unit.way[j] == static_cast<int64_t>(k - j)) ++k;
      add(s.start + unit.way[j], s.start + unit.way[j] + static_cast<int64_t>(k - j),
          s.start + static_cast<int64_t>(j));
    }
    kernels::Attention& call = calls[u];
    call.G = of.groups, call.K = of.width;
    call.kv = {found.data(), static_cast<int64_t>(found.size())};
    call.window = window;
    call.visible = nullptr;
  }
}

bool reads_entries(const Batch& batch, const StateRows* rows, int64_t window) {
  if (rows == nullptr) return false;
  for (size_t i = 0; i < rows->size(); ++i) {
    if (window > 0 && batch.segments[i].length > 1) return false;
    const TokenBuffer& keys = (*rows)[i]->tokens(0);
    if (keys.stored_type() == at::kDouble || !keys.on_cpu()) return false;
  }
  return true;
}

}  // namespace tessera::nn
