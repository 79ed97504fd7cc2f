// The tensors that `tessera forward` is given, through a model.
#include "tiny_model.h"

#include "fuzz.h"

#include "tessera/format/safetensors.h"
#include "tessera/infer/loading/tensor_files.h"
#include "tessera/model/padding.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(forward_input) {
  static const model::Model model = fuzz::tiny_model();
  fuzz::run(
      [&] {
        const at::NoGradGuard no_gradients;
        const auto file = format::read_safetensors(input, "fuzz");
        const auto get = [&](const char* name) { return infer::tensor_or_undefined(file, name); };
        const Tensor ids = get("input_ids"), mask = get("attention_mask"),
                     prefixes = get("prefix_lengths");
        if (!ids.defined()) return;
        nn::Batch batch = model::from_padded(ids, mask, get("position_ids"), get("token_type_ids"),
                                             get("global_attention_mask"));
        if (prefixes.defined()) model::set_prefixes(batch, prefixes);
        const Tensor hidden = model::to_padded(model.hidden(batch), ids, mask);
        fuzz::check(
            hidden.dim() == 3 && hidden.size(0) == ids.size(0) && hidden.size(1) == ids.size(1),
            "what comes out has the shape of what went in");
      },
      {ErrorKind::file, ErrorKind::input});
}
