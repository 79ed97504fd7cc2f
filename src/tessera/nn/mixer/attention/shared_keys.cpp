#include "tessera/nn/mixer/attention/shared_keys.h"

#include <memory>

namespace tessera::nn {

void SharedKeys::leave(const Tensor& k_NGD, const Tensor& v_NGV, Context& context) const {
  if (name_.empty()) return;
  context.values.put("keys " + name_, k_NGD);
  context.values.put("values " + name_, v_NGV);
}

std::pair<Tensor, Tensor> SharedKeys::of_earlier(const Context& context) const {
  return {context.values.at("keys " + of_), context.values.at("values " + of_)};
}

void SharedKeys::keep(std::vector<PatternMask::Past> pasts, Context& context) const {
  if (name_.empty()) {
    for (PatternMask::Past& past : pasts) past.keep();
    return;
  }
  SharedKeyValues::Lists lists;
  for (const PatternMask::Past& past : pasts) lists.push_back(past.kv);
  context.keys.put(name_, std::move(lists));
  context.keys.at_end([kept = std::make_shared<std::vector<PatternMask::Past>>(std::move(pasts))] {
    for (PatternMask::Past& past : *kept) past.keep();
  });
}

}  // namespace tessera::nn
