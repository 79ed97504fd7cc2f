// Bodies of the other routes: embeddings, labels, tokens, translations.
#include "tessera/serve/body_values.h"

namespace tessera::serve {
namespace {

constexpr size_t kMostInputs = 2048;

}  // namespace

const Fields<EmbeddingsBody>& embeddings_fields() {
  static const Fields<EmbeddingsBody> fields = [] {
    using E = EmbeddingsBody;
    Fields<E> f;
    f.add("input", Json::object(), "a text, token ids, or a list of up to 2048 of either",
          [](E& body, const Json& value, const std::string& name) {
            body.input = prompts_of(value, name, kMostInputs);
          });
    f.required();
    add_model(f);
    f.add("encoding_format", {{"enum", {"float", "base64"}}},
          "numbers, or base64 of little-endian float32",
          [](E& body, const Json& value, const std::string& name) {
            if (value != "float" && value != "base64")
              refuse(name, name + ": expected float or base64");
            body.base64 = value == "base64";
          });
    f.integer("dimensions", &E::dimensions, 1, kMostTokens,
              "the first so many numbers of each vector, again of length 1 where the model's "
              "vectors are (Matryoshka truncation); default: all");
    return f;
  }();
  return fields;
}

namespace {

/// A list in a list is a pair.
std::vector<TextOrPair> texts_or_pairs_of(const Json& value, const std::string& name, size_t most) {
  std::vector<TextOrPair> out;
  if (value.is_string()) {
    out.push_back({text_of(value, name, kMostText)});
    return out;
  }
  if (!value.is_array() || value.empty() || value.size() > most)
    refuse(name, fmt::format("{} is {}; expected a string, or a list of 1 to {} strings and pairs "
                             "[string, string]",
                             name,
                             value.is_array() ? fmt::format("a list of {}", value.size())
                                              : std::string(spec::kind_of(value)),
                             most));
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string which = fmt::format("{}[{}]", name, i);
    if (!value[i].is_array()) {
      out.push_back({text_of(value[i], which, kMostText)});
      continue;
    }
    if (value[i].size() != 2)
      refuse(which, fmt::format("{} is a list of {}; expected a pair [string, string]", which,
                                value[i].size()));
    out.push_back({text_of(value[i][0], which + "[0]", kMostText),
                   text_of(value[i][1], which + "[1]", kMostText)});
  }
  return out;
}

template <class Body>
void add_input(Fields<Body>& f) {
  f.add("input", Json::object(), "a text, or a list of up to 2048",
        [](Body& body, const Json& value, const std::string& name) {
          body.input = texts_of(value, name, kMostInputs);
        });
  f.required();
  add_model(f);
}

}  // namespace

namespace {

/// A text, or Jina's and Cohere's {"text": ...}.
std::string document_of(const Json& value, const std::string& name, const UnknownMembers& unknown) {
  if (value.is_string()) return text_of(value, name, kMostText);
  if (!value.is_object() || !value.contains("text"))
    refuse(name, fmt::format("{} is {}; expected a string or {{\"text\": string}}", name,
                             value.is_object() ? "an object without text"
                                               : std::string(spec::kind_of(value))));
  std::string out;
  read_members(value, name, {"text"}, unknown,
               [&](const std::string&, const Json& text, const std::string& where) {
                 out = text_of(text, where, kMostText);
               });
  return out;
}

}  // namespace

const Fields<RerankBody>& rerank_fields() {
  static const Fields<RerankBody> fields = [] {
    using R = RerankBody;
    Fields<R> f;
    f.text("query", &R::query, kMostText, "query").required();
    f.add("documents", {{"type", "array"}, {"maxItems", kMostInputs}},
          "up to 2048 texts, each a string or {\"text\": string}",
          [](R& body, const Json& value, const std::string& name, const UnknownMembers& unknown) {
            if (!value.is_array() || value.empty() || value.size() > kMostInputs)
              refuse(name, fmt::format("{} is no list of 1 to {} texts", name, kMostInputs));
            for (size_t i = 0; i < value.size(); ++i)
              body.documents.push_back(
                  document_of(value[i], fmt::format("{}[{}]", name, i), unknown));
          });
    f.required();
    add_model(f);
    f.integer("top_n", &R::top_n, 0, kMostTokens, "only so many of the best; 0 = all")
        .flag("use_activation", &R::use_activation,
              "scores of a classifier as probabilities; else its numbers")
        .flag("return_documents", &R::return_documents, "results with their texts");
    return f;
  }();
  return fields;
}

const Fields<ClassifyBody>& classify_fields() {
  static const Fields<ClassifyBody> fields = [] {
    Fields<ClassifyBody> f;
    f.add("input", Json::object(), "a text, or a list of up to 2048 texts and [text, text] pairs",
          [](ClassifyBody& body, const Json& value, const std::string& name) {
            body.input = texts_or_pairs_of(value, name, kMostInputs);
          });
    f.required();
    add_model(f);
    return f;
  }();
  return fields;
}

const Fields<FillMaskBody>& fill_mask_fields() {
  static const Fields<FillMaskBody> fields = [] {
    using M = FillMaskBody;
    Fields<M> f;
    add_input(f);
    f.integer("top_k", &M::top_k, 1, 1000, "number of candidates per mask");
    f.add("targets", {{"type", "array"}}, "these tokens alone",
          [](M& body, const Json& value, const std::string& name) {
            body.targets = texts_of(value, name, 1000);
          });
    return f;
  }();
  return fields;
}

const Fields<TranslateBody>& translate_fields() {
  static const Fields<TranslateBody> fields = [] {
    using T = TranslateBody;
    Fields<T> f;
    add_input(f);
    f.text("source_lang", &T::source_lang, 64, "the language of the input, where a token names it")
        .text("target_lang", &T::target_lang, 64, "the language of the output");
    add_integer(f, infer::decoding_field("iterations"), &T::iterations, "; default 10");
    add_integer(f, infer::decoding_field("length_candidates"), &T::lengths, "; default 5");
    f.integer("max_tokens", &T::max_tokens, 1, kMostTokens,
              "maximum new tokens of each answer; default: the model's, else 256, or twice the "
              "input's if that is more");
    add_search(f);
    return f;
  }();
  return fields;
}

TranslateBody read_translate(const Json& json, std::vector<std::string>* ignored) {
  TranslateBody body = translate_fields().read(json, ignored);
  body.check_search();
  return body;
}

const Fields<TokenizeBody>& tokenize_fields() {
  static const Fields<TokenizeBody> fields = [] {
    using T = TokenizeBody;
    Fields<T> f;
    f.add("content", {{"type", "string"}}, "the text",
          [](T& body, const Json& value, const std::string& name) {
            body.content = text_of(value, name, kMostText);
            body.as_prompt = name == "prompt";
          });
    f.alias("prompt");
    f.add("messages", {{"type", "array"}}, "or a conversation, by the model's chat template",
          [](T& body, const Json& value, const std::string& name, const UnknownMembers& unknown) {
            body.messages = messages_of(value, name, unknown);
          });
    add_model(f);
    f.flag("add_special", &T::add_special,
           "add the special tokens that the model expects around a text (BOS, EOS, [CLS], ...); "
           "default: false of content, as llama.cpp's server, true of prompt, as vLLM")
        .alias("add_special_tokens");
    f.flag("parse_special", &T::parse_special, "parse special tokens in the text")
        .flag("with_pieces", &T::with_pieces, "the text of each token with its id");
    return f;
  }();
  return fields;
}

const Fields<DetokenizeBody>& detokenize_fields() {
  static const Fields<DetokenizeBody> fields = [] {
    using D = DetokenizeBody;
    Fields<D> f;
    f.add("tokens", {{"type", "array"}, {"items", {{"type", "integer"}}}}, "ids",
          [](D& body, const Json& value, const std::string& name) {
            body.tokens = ids_of(value, name, kMostText);
          });
    f.required();
    add_model(f);
    return f;
  }();
  return fields;
}

}  // namespace tessera::serve
