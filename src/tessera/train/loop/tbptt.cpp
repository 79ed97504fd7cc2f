#include "tessera/train/loop/tbptt.h"

namespace tessera::train {
namespace {

// the checkpoint records which model and data the file belongs to
constexpr const char* kFingerprint = "rows carried in training";

}  // namespace

RecurrentStates::RecurrentStates(const model::ModelSpec& spec,
                                 int64_t streams,
                                 int64_t limit,
                                 at::Device device)
    : spec_(&spec), limit_(limit), device_(device) {
  for (int64_t i = 0; i < streams; ++i) rows_.push_back(empty());
}

void RecurrentStates::forget(int64_t stream) {
  rows_.at(static_cast<size_t>(stream)) = empty();
}

model::State RecurrentStates::enter(nn::Batch& batch,
                                    const PackedBatch& packed,
                                    const std::vector<int64_t>& streams) const {
  model::State state = empty(0);
  int64_t window = -1;
  for (size_t i = 0; i < packed.pieces.size(); ++i) {
    const PackedDocument& piece = packed.pieces[i];
    nn::Segment& segment = batch.segments[i];
    segment.row = static_cast<int64_t>(i);
    segment.start = 0;
    // the first document of a window continues that of its stream, the others start at 0
    if (piece.row != window) {
      window = piece.row;
      const int64_t stream = streams[static_cast<size_t>(window)];
      if (fits(length(stream), piece.length, limit_)) {
        segment.start = length(stream);
        state.append(rows_[static_cast<size_t>(stream)]);
        continue;
      }
    }
    state.append(empty());
  }
  batch.number();
  return state;
}

void RecurrentStates::leave(const model::State& state,
                            const nn::Batch& batch,
                            const PackedBatch& packed,
                            const std::vector<int64_t>& streams) {
  // later documents of a window overwrite the states of earlier ones
  for (size_t i = 0; i < packed.pieces.size(); ++i) {
    const auto window = static_cast<size_t>(packed.pieces[i].row);
    const bool last =
        i + 1 == packed.pieces.size() || packed.pieces[i + 1].row != packed.pieces[i].row;
    if (!last) continue;
    model::State& row = rows_.at(static_cast<size_t>(streams[window]));
    row = packed.goes_on[window] ? state.select({batch.segments[i].row}) : empty();
    row.detach();
  }
}

void RecurrentStates::save(const std::filesystem::path& file) const {
  model::State all = empty(0);
  for (const model::State& row : rows_) all.append(row);
  all.save(file, kFingerprint);
}

void RecurrentStates::load(const std::filesystem::path& file) {
  model::State all = empty(streams());
  all.load(file, kFingerprint);
  for (int64_t i = 0; i < streams(); ++i) rows_[static_cast<size_t>(i)] = all.select({i});
}

}  // namespace tessera::train
