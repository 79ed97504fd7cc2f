#include "tessera/nn/head/head_config.h"
#include "tessera/nn/head/head_list.h"

namespace tessera::nn {
namespace {

using spec::AnyPart;
using spec::Json;

/// Width of the vectors that the embedding has per token.
int64_t token_width(const AnyPart& embed, const spec::Scope& scope) {
  spec::ParamList list;
  embed.config->params(list, scope);
  for (const spec::ParamDecl& decl : list.all())
    if (decl.name == "token.weight") return decl.shape.back();
  return 0;
}

void add(HeadList& heads, const Json& json, const spec::Scope& scope) {
  const AnyPart part = spec::read_part(spec::Slot::head, json, scope);
  if (!part) fail(ErrorKind::spec, scope.path, "found null; expected a head");
  const bool pools = part.as<HeadConfig>().reads() == HeadInput::documents;
  AnyPart& place = pools ? heads.pooler : heads.logits;
  if (place)
    fail(ErrorKind::spec, scope.path, "\"{}\" and \"{}\" both {}; expected one of them",
         place.type(), part.type(), pools ? "pool" : "give logits");
  place = part;
}

}  // namespace

HeadList read_heads(const Json& spec,
                    const Json& fallback,
                    const AnyPart& embed,
                    const spec::Scope& scope) {
  HeadList heads;
  if (spec.contains("heads")) {
    const Json& list = spec["heads"];
    if (spec.contains("head"))
      fail(ErrorKind::spec, "heads", "given together with \"head\"; expected one of them");
    if (!list.is_array())
      fail(ErrorKind::spec, "heads", "found {}; expected a list of heads", spec::kind_of(list));
    for (size_t i = 0; i < list.size(); ++i) {
      add(heads, list[i], scope.at(fmt::format("heads[{}]", i)));
    }
  } else if (const Json head = spec.contains("head") ? spec["head"] : fallback; !head.is_null()) {
    add(heads, head, scope.at("head"));
  }
  if (!heads.logits) return heads;
  const std::string where = spec.contains("heads") ? "heads" : "head";

  const auto& logits = heads.logits.as<HeadConfig>();
  if (logits.reads() == HeadInput::pooled && !heads.pooler)
    fail(ErrorKind::spec, where, "head \"{}\" needs a pooler: add \"pooler\" to \"heads\"",
         heads.logits.type());
  const int64_t width = token_width(embed, scope);
  if (logits.tied() && width == 0)
    fail(ErrorKind::spec, where,
         "\"{}\" multiplies by token vectors, and embed \"{}\" has none; use \"linear\" or "
         "\"classifier\"",
         heads.logits.type(), embed.type());
  if (logits.tied() && logits.table_width(scope) != width)
    fail(ErrorKind::spec, where,
         "\"{}\" multiplies vectors of width {} by token vectors of width {}; give the head "
         "\"width\": {}",
         heads.logits.type(), logits.table_width(scope), width, width);
  return heads;
}

void dump_heads(const HeadList& heads, Json& spec) {
  if (!heads.pooler) {
    spec["head"] = spec::dump_part(heads.logits);
    return;
  }
  spec["heads"] = Json::array();
  if (heads.logits) spec["heads"].push_back(spec::dump_part(heads.logits));
  spec["heads"].push_back(spec::dump_part(heads.pooler));
}

}  // namespace tessera::nn
