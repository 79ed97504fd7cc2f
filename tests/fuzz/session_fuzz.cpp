// A saved session. Whoever forges one writes its checksum too, and so does this target: 16 bytes of
// the file.
#include "files.h"
#include "tiny_model.h"

#include "tessera/format/safetensors.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/engine/session.h"

using namespace tessera;

namespace {

std::string with_checksum(std::string file) {
  std::string there, right;
  {
    const auto parsed = format::read_safetensors(std::as_bytes(std::span(file)), "session");
    const auto found = parsed.metadata().find("session_checksum");
    if (found == parsed.metadata().end()) return file;
    there = found->second;
    right = infer::session_checksum(parsed.tensors(), parsed.metadata());
  }
  const size_t at = file.find(there);
  if (there.size() == right.size() && at != std::string::npos)
    file.replace(at, right.size(), right);
  return file;
}

}  // namespace

TESSERA_FUZZ_TARGET(session) {
  static const model::Model model = fuzz::tiny_model();
  static const fuzz::Folder folder;
  fuzz::run(
      [&] {
        const auto file = folder.put("session", with_checksum(std::string(fuzz::text_of(input))));
        infer::Session session = infer::load_session(file, model, "fuzz");
        fuzz::check(session.state.rows() == static_cast<int64_t>(session.rows.size()),
                    "a state of the rows");
        if (session.rows.size() > 4) return;
        // it goes on, whatever its numbers are
        infer::GenerateOptions options;
        options.max_new_tokens = 2;
        options.session = &session;
        const std::vector<std::vector<int64_t>> nothing(session.rows.size());
        infer::generate(model, nullptr, nothing, options);
      },
      {ErrorKind::file, ErrorKind::input});
}
