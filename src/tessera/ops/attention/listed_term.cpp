#include "tessera/ops/attention/listed_term.h"
#include "tessera/ops/basic/ordered_sum.h"

#include <algorithm>

namespace tessera::ops {
namespace {

/// f(entry, query, head): every entry of lists by query and head.
template <class F>
void for_entries(const KeyLists& lists, const F& f) {
  size_t entry = 0;
  for (size_t list = 0; list < lists.ends.size(); ++list)
    for (; static_cast<int64_t>(entry) < lists.ends[list]; ++entry)
      f(entry, static_cast<int64_t>(list) / lists.per_query,
        static_cast<int64_t>(list) % lists.per_query);
}

Tensor picked(const Tensor& numbers, const Tensor& index) {
  return numbers.flatten().index_select(0, index.to(numbers.device()));
}

class ListedTerm {
 public:
  ListedTerm(ScoreTerm term, double scale, int64_t start, std::vector<KeyPlaces> places)
      : term_(std::move(term)), scale_(scale), start_(start), places_(std::move(places)) {}

  /// `inputs`: the table where there is one, then those of the function.
  Tensor operator()(const KeyLists& lists,
                    int64_t first,
                    const Tensor& q_NHK,
                    const std::vector<KeyMemory>& memories,
                    const std::vector<Tensor>& inputs) const {
    const size_t tables = term_.bias_HR.defined() ? 1 : 0;
    Tensor sum;
    if (tables > 0) sum = by_table(lists, first, inputs[0]).to(q_NHK.scalar_type());
    if (term_.bias) {
      const Tensor more =
          by_function(lists, first, q_NHK, memories,
                      {inputs.begin() + static_cast<std::ptrdiff_t>(tables), inputs.end()});
      sum = sum.defined() ? sum + more : more;
    }
    return sum;
  }

 private:
  Tensor by_table(const KeyLists& lists, int64_t first, const Tensor& bias_HR) const {
    const int64_t rows = bias_HR.size(0), width = bias_HR.size(1);
    Tensor index = at::empty({static_cast<int64_t>(lists.keys.size())}, at::kLong);
    auto* cells = index.data_ptr<int64_t>();
    for_entries(lists, [&](size_t e, int64_t t, int64_t h) {
      const ListedKey& key = lists.keys[e];
      const int64_t distance =
          places_[static_cast<size_t>(key.source)].of(key.index) - (start_ + first + t);
      cells[e] =
          (rows == 1 ? 0 : h) * width + std::clamp<int64_t>(distance + term_.zero, 0, width - 1);
    });
    return picked(bias_HR, index);
  }

  /// Keys of a memory that some list names, [begin, end), and where their numbers [H or 1, T, end -
  /// begin] begin among all.
  struct Span {
    int64_t begin = std::numeric_limits<int64_t>::max(), end = 0, offset = 0;
    int64_t size() const { return std::max<int64_t>(0, end - begin); }
  };

  Tensor by_function(const KeyLists& lists,
                     int64_t first,
                     const Tensor& q_NHK,
                     const std::vector<KeyMemory>& memories,
                     const std::vector<Tensor>& inputs) const {
    std::vector<Span> spans(memories.size());
    for (const ListedKey& key : lists.keys) {
      Span& span = spans[static_cast<size_t>(key.source)];
      span.begin = std::min<int64_t>(span.begin, key.index);
      span.end = std::max<int64_t>(span.end, key.index + 1);
    }
    const int64_t n = q_NHK.size(0);
    ScoreTerm term{.bias = term_.bias, .inputs = inputs};
    std::vector<Tensor> numbers;
    int64_t offset = 0;
    bool by_head = false;
    for (size_t m = 0; m < memories.size(); ++m) {
      if (spans[m].size() == 0) continue;
      const Tensor of_memory = added(term, q_NHK, first, memories[m], places_[m], spans[m]);
      by_head = of_memory.size(0) > 1;
      spans[m].offset = offset;
      offset += of_memory.numel();
      numbers.push_back(of_memory.flatten());
    }
    if (numbers.empty()) return at::zeros({0}, q_NHK.options());
    Tensor index = at::empty({static_cast<int64_t>(lists.keys.size())}, at::kLong);
    auto* cells = index.data_ptr<int64_t>();
    for_entries(lists, [&](size_t e, int64_t t, int64_t head) {
      const ListedKey& key = lists.keys[e];
      const Span& span = spans[static_cast<size_t>(key.source)];
      cells[e] =
          span.offset + ((by_head ? head : 0) * n + t) * span.size() + key.index - span.begin;
    });
    return picked(numbers.size() == 1 ? numbers[0] : at::cat(numbers), index);
  }

  /// [H or 1, T, span]
  Tensor added(const ScoreTerm& term,
               const Tensor& q_NHK,
               int64_t first,
               const KeyMemory& memory,
               const KeyPlaces& places,
               const Span& span) const {
    const Tensor k_SGK = memory.k.size() == 1 ? memory.k[0] : at::cat(memory.k);
    const int64_t per_group = q_NHK.size(1) / k_SGK.size(1);
    const Tensor q = q_NHK.transpose(0, 1).unsqueeze(0),
                 k = repeat_each(k_SGK.narrow(0, span.begin, span.size()).transpose(0, 1),
                                 per_group, 0)
                         .unsqueeze(0)
                         .to(q.scalar_type());
    // those in step, and those that stand at the last position together
    const int64_t limit = std::min(places.last, places.first + span.end * places.step);
    const int64_t in_step =
        limit < places.first
            ? 0
            : std::clamp<int64_t>((limit - places.first) / places.step + 1 - span.begin, 0,
                                  span.size());
    std::vector<Tensor> parts;
    const auto add = [&](int64_t from, int64_t n, int64_t position, int64_t step) {
      if (n == 0) return;
      const Tensor keys = k.narrow(2, from, n);
      parts.push_back(
          added_by_term(term, {q, keys, start_ + first, position, scale_, 1, step}).squeeze(0));
    };
    add(0, in_step, places.first + span.begin * places.step, places.step);
    for (int64_t i = in_step; i < span.size(); ++i) add(i, 1, places.last, 1);
    return parts.size() == 1 ? parts[0] : at::cat(parts, -1);
  }

  ScoreTerm term_;
  double scale_;
  int64_t start_;
  std::vector<KeyPlaces> places_;
};

}  // namespace

ScoreTerm detached(ScoreTerm term) {
  if (term.bias_HR.defined()) term.bias_HR = term.bias_HR.detach();
  for (Tensor& x : term.inputs) x = x.detach();
  return term;
}

ListBias listed_term(const ScoreTerm& term,
                     double scale,
                     int64_t start,
                     std::vector<KeyPlaces> places) {
  if (!term) return {};
  require(!term.values, "listed_term", "a term of the weights needs them as a tensor");
  ListBias bias;
  if (term.bias_HR.defined()) bias.inputs.push_back(term.bias_HR);
  bias.inputs.insert(bias.inputs.end(), term.inputs.begin(), term.inputs.end());
  // what gradients reach comes back as an argument
  ScoreTerm kept = detached(term);
  kept.inputs.clear();
  bias.of = ListedTerm(std::move(kept), scale, start, std::move(places));
  return bias;
}

}  // namespace tessera::ops
