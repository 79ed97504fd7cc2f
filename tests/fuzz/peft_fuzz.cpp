// An adapter in the two files of PEFT, adapter_config.json and adapter_model.safetensors, for
// models of families with tied matrices and with experts.
#include "files.h"

#include "tessera/convert/peft.h"
#include "tessera/nn/registry.h"

using namespace tessera;

namespace {

/// A model of zeros.
convert::Checkpoint small_model(const char* family, const std::string& ffn, const char* head) {
  nn::register_mechanisms();
  convert::Checkpoint checkpoint;
  checkpoint.spec = model::read_model_spec(spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 8, "d_model": 4, "context": 16, "norm": "rms_norm",
          "layers": [{"mixer": {"type": "attention", "n_heads": 2, "n_kv_heads": 1,
                                "position": {"type": "rope"}}}],
          "ffn": )" +
          ffn + R"(, "head": ")" + head + R"("})",
      "spec"));
  checkpoint.spec_json = model::resolve(checkpoint.spec);
  checkpoint.family = family;
  for (const spec::ParamDecl& decl : model::parameters(checkpoint.spec)) {
    const auto zeros = std::make_shared<const std::vector<float>>(decl.elements(), 0.0F);
    checkpoint.tensors.push_back(
        {decl.name, DType::f32, decl.shape, std::as_bytes(std::span(*zeros)), zeros});
  }
  return checkpoint;
}

void check_parts(const convert::AdapterTensors& one) {
  fuzz::check(!one.weight.empty() && !one.parts.empty(), "something for a weight");
  const auto a = one.parts.find("lora_a"), b = one.parts.find("lora_b");
  fuzz::check((a == one.parts.end()) == (b == one.parts.end()), "a whole product");
  if (a == one.parts.end()) return;
  const auto &down = a->second.shape, &up = b->second.shape;
  fuzz::check(down.size() == up.size() && (down.size() == 2 || down.size() == 3), "matrices");
  fuzz::check(down[down.size() - 2] == up.back(), "one rank");
}

}  // namespace

TESSERA_FUZZ_TARGET(peft) {
  static const convert::Checkpoint bases[] = {
      small_model("llama", R"({"type": "glu", "d_hidden": 8})", "linear"),
      small_model("llama", R"({"type": "glu", "d_hidden": 8})", "tied"),
      small_model("mixtral",
                  R"({"type": "moe", "n_experts": 3, "router": {"type": "top_k", "k": 2, "norm": 1},
                      "expert": {"type": "glu", "d_hidden": 5}})",
                  "linear")};
  static const fuzz::Folder folder;
  const auto parts = fuzz::parts_of<2>(input);
  folder.put(convert::kPeftConfig, parts[0]);
  folder.put(convert::kPeftTensors, parts[1]);
  for (const convert::Checkpoint& base : bases)
    fuzz::run(
        [&] {
          const convert::Checkpoint own = convert::peft_base(base, folder.path());
          for (const convert::AdapterTensors& one : convert::read_peft(folder.path(), own))
            check_parts(one);
        },
        {ErrorKind::file, ErrorKind::usage});
}
