#include "tessera/train/data/token_split.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/output_file.h"
#include "tessera/spec/json.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using spec::Json;

constexpr size_t kHeldTokens = size_t{1} << 18;

fs::path shard_path(const fs::path& folder, int index) {
  return folder / fmt::format("{:05}.bin", index);
}

int64_t number(const Json& json, const char* key, const fs::path& file) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer() || found->get<int64_t>() < 0)
    fail(ErrorKind::file, "tokens", "{}: \"{}\" is missing or not a count", file.string(), key);
  return found->get<int64_t>();
}

std::shared_ptr<const MappedFile> open_sized(const fs::path& path, int64_t bytes) {
  auto file = MappedFile::open(path);
  if (static_cast<int64_t>(file->bytes().size()) != bytes)
    fail(ErrorKind::file, "tokens", "{}: {} bytes; expected {}", path.string(),
         file->bytes().size(), bytes);
  return file;
}

}  // namespace

TokenSplit TokenSplit::open(const fs::path& folder) {
  const fs::path index = folder / "index.json";
  const Json json = spec::read_json_file(index);
  if (!json.is_object())
    fail(ErrorKind::file, "tokens", "{}: found {}; expected an object", index.string(),
         spec::kind_of(json));
  TokenSplit split;
  split.tokens_ = number(json, "tokens", index);
  split.text_bytes_ = number(json, "text_bytes", index);
  const int64_t width = number(json, "token_bytes", index);
  const int64_t documents = number(json, "documents", index);
  constexpr int64_t kMost = int64_t{1} << 48;
  if ((width != 2 && width != 4) || split.tokens_ > kMost || documents > split.tokens_ ||
      split.text_bytes_ > kMost)
    fail(ErrorKind::file, "tokens", "{}: counts out of range", index.string());
  split.width_ = static_cast<int>(width);
  for (int64_t begin = 0; begin < split.tokens_; begin += kShardTokens)
    split.shards_.push_back(
        open_sized(shard_path(folder, static_cast<int>(begin / kShardTokens)),
                   std::min(kShardTokens, split.tokens_ - begin) * split.width_));
  split.ends_file_ = open_sized(folder / "ends.bin", documents * 8);
  split.ends_ = {reinterpret_cast<const int64_t*>(split.ends_file_->bytes().data()),
                 static_cast<size_t>(documents)};
  int64_t before = 0;
  for (const int64_t end : split.ends_) {
    if (end <= before)
      fail(ErrorKind::file, "tokens", "{}: documents do not ascend",
           (folder / "ends.bin").string());
    before = end;
  }
  if (before != split.tokens_)
    fail(ErrorKind::file, "tokens", "{}: ends at {}; expected {}", (folder / "ends.bin").string(),
         before, split.tokens_);
  return split;
}

void TokenSplit::read(int64_t begin, std::span<int64_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  require(begin >= 0 && count <= tokens_ && begin <= tokens_ - count, "tokens",
          "{} tokens at {} of {}", count, begin, tokens_);
  for (int64_t done = 0; done < count;) {
    const int64_t at = begin + done, within = at % kShardTokens;
    const int64_t n = std::min(count - done, kShardTokens - within);
    const std::byte* data =
        shards_[static_cast<size_t>(at / kShardTokens)]->bytes().data() + within * width_;
    for (int64_t i = 0; i < n; ++i) {
      uint16_t narrow = 0;
      uint32_t wide = 0;
      if (width_ == 2)
        std::memcpy(&narrow, data + 2 * i, 2), wide = narrow;
      else
        std::memcpy(&wide, data + 4 * i, 4);
      out[static_cast<size_t>(done + i)] = wide;
    }
    done += n;
  }
}

int64_t TokenSplit::document_end(int64_t index) const {
  return *std::upper_bound(ends_.begin(), ends_.end(), index);
}

int64_t TokenSplit::document_of(int64_t index) const {
  return std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin();
}

std::pair<int64_t, int64_t> TokenSplit::document(int64_t index) const {
  require(index >= 0 && index < documents(), "tokens", "document {} of {}", index, documents());
  const int64_t begin = index == 0 ? 0 : ends_[static_cast<size_t>(index - 1)];
  return {begin, ends_[static_cast<size_t>(index)] - begin};
}

TokenWriter::TokenWriter(fs::path folder, int64_t vocab)
    : folder_(std::move(folder)), vocab_(vocab), width_(vocab <= 65536 ? 2 : 4) {
  create_folder(folder_);
}

void TokenWriter::append(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_)
      fail(ErrorKind::input, "data",
           "the tokenizer gives id {}; the spec has a vocabulary of {} (spec.vocab)", id, vocab_);
    held_.push_back(static_cast<uint32_t>(id));
    ++tokens_;
    if (held_.size() >= kHeldTokens) flush();
  }
}

void TokenWriter::end_document(int64_t text_bytes) {
  if (tokens_ == (ends_.empty() ? 0 : ends_.back())) return;
  ends_.push_back(tokens_);
  text_bytes_ += text_bytes;
}

void TokenWriter::flush() {
  std::span<const uint32_t> rest = held_;
  while (!rest.empty()) {
    if (!shard_)
      shard_ = std::make_unique<OutputFile>(shard_path(folder_, shards_++)), shard_tokens_ = 0;
    const auto n = static_cast<size_t>(
        std::min<int64_t>(static_cast<int64_t>(rest.size()), kShardTokens - shard_tokens_));
    if (width_ == 4) {
      shard_->write(std::as_bytes(rest.first(n)));
    } else {
      const std::vector<uint16_t> narrow(rest.begin(),
                                         rest.begin() + static_cast<std::ptrdiff_t>(n));
      shard_->write(std::as_bytes(std::span(narrow)));
    }
    shard_tokens_ += static_cast<int64_t>(n);
    rest = rest.subspan(n);
    if (shard_tokens_ == kShardTokens) shard_->commit(), shard_.reset();
  }
  held_.clear();
}

void TokenWriter::finish() {
  flush();
  if (shard_) shard_->commit(), shard_.reset();
  OutputFile ends(folder_ / "ends.bin");
  ends.write(std::as_bytes(std::span(ends_)));
  ends.commit();
  const Json index = {{"tokens", tokens_},
                      {"documents", ends_.size()},
                      {"text_bytes", text_bytes_},
                      {"token_bytes", width_}};
  write_file_atomically(folder_ / "index.json", index.dump(2) + "\n");
}

}  // namespace tessera::train
