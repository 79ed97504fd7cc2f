// Dropout of the tokens of a call.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/nn/context.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/random.h"
#include "tessera/ops/weights/product_settings.h"

namespace tessera::nn {

/// The random numbers of rows by expert: a site draws for each expert as if that computed all
/// tokens of the call.
inline std::vector<ops::StreamRow> expert_streams(const Groups& groups,
                                                  const RandomKey& site,
                                                  const std::vector<Segment>& segments) {
  require(groups.token_S.defined(), "dropout", "rows of experts that are no tokens");
  const auto* token = groups.token_S.const_data_ptr<int64_t>();
  std::vector<ops::StreamRow> rows;
  rows.reserve(static_cast<size_t>(groups.offsets.back()));
  for (size_t e = 0; e + 1 < groups.offsets.size(); ++e) {
    const RandomKey own = site.fold(e);
    auto s = segments.begin();
    for (int64_t i = groups.offsets[e]; i < groups.offsets[e + 1]; ++i) {
      while (s != segments.end() && token[i] >= s->begin + s->length) ++s;
      require(s != segments.end() && token[i] >= s->begin, "dropout", "no segment has token {}",
              token[i]);
      rows.push_back({s->stream(own), token[i] - s->begin});
    }
  }
  return rows;
}

/// x_ND with dropout at the site `name`, in training; every segment draws from a stream of its own,
/// and where a call computes many experts at once, every expert.
inline Tensor dropout(const Tensor& x_ND,
                      double p,
                      const std::string& name,
                      const Context& context) {
  if (!context.training || p == 0) return x_ND;
  const RandomKey site = context.key.fold(name);
  if (context.groups)
    return ops::dropout(x_ND, p, expert_streams(*context.groups, site, context.batch->segments));
  std::vector<RandomKey> streams;
  for (const Segment& s : context.batch->segments) streams.push_back(s.stream(site));
  return ops::dropout(x_ND, p, lengths_of(*context.batch), streams);
}

/// The same of what adapters read of the tokens of `batch`, each weight a site, for as long as
/// anything keeps it; null outside training. Rows that are not those tokens are refused with
/// Error(usage): they have no random numbers of their own.
inline ops::InputDropPtr input_drop(const Context& context, const Batch& batch) {
  if (!context.training) return nullptr;
  return std::make_shared<const ops::InputDrop>(
      [key = context.key.fold("adapter"), segments = batch.segments, lengths = lengths_of(batch)](
          const Tensor& x, double p, const std::string& weight) {
        const Tensor rows = x.reshape({-1, x.size(-1)});
        const int64_t tokens =
            segments.empty() ? 0 : segments.back().begin + segments.back().length;
        if (rows.size(0) != tokens)
          fail(ErrorKind::usage, "adapter",
               "{} reads {} rows in a call of {} tokens, and dropout is drawn per token; expected "
               "adapter dropout 0",
               weight, rows.size(0), tokens);
        std::vector<RandomKey> streams;
        for (const Segment& s : segments) streams.push_back(s.stream(key.fold(weight)));
        return ops::dropout(rows, p, lengths, streams).reshape(x.sizes());
      });
}

/// The same of what adapters of experts read of their rows; null where the call drops nothing.
inline ops::InputDropPtr expert_input_drop(std::shared_ptr<const Groups> groups,
                                           const Context& context) {
  if (!context.training || !context.products.drop) return nullptr;
  return std::make_shared<const ops::InputDrop>(
      [key = context.key.fold("adapter"), segments = context.batch->segments,
       groups = std::move(groups)](const Tensor& x, double p, const std::string& weight) {
        if (!groups->token_S.defined() || x.size(0) != groups->offsets.back())
          fail(ErrorKind::usage, "adapter",
               "{} reads {} rows that are not the tokens of a call, and dropout is drawn per "
               "token; expected adapter dropout 0",
               weight, x.size(0));
        return ops::dropout(x, p, expert_streams(*groups, key.fold(weight), segments));
      });
}

/// The rows that the parts of a call read are those of experts while it lives: the context has
/// their groups, and their drop.
class ExpertRows {
 public:
  ExpertRows(Context& context, std::shared_ptr<const Groups> groups) : context_(context) {
    ops::InputDropPtr drop = expert_input_drop(groups, context);
    drop_ = std::exchange(context.products.drop, std::move(drop));
    groups_ = std::exchange(context.groups, std::move(groups));
  }
  ~ExpertRows() {
    context_.products.drop = std::move(drop_);
    context_.groups = std::move(groups_);
  }
  ExpertRows(const ExpertRows&) = delete;
  ExpertRows& operator=(const ExpertRows&) = delete;

 private:
  Context& context_;
  std::shared_ptr<const Groups> groups_;
  ops::InputDropPtr drop_;
};

}  // namespace tessera::nn
