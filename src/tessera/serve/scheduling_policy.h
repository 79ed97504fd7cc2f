// Whose turn it is and who gives way, as rules over plain data: the scheduler (scheduler.h) applies
// them to requests and engines. Torch-free; no threads, no clock of its own.
//
// Order: the lower priority value first, lowered by one for every ten seconds of waiting; then the
// client with the smaller service count (Virtual Token Counter: 1 per prefilled token, 2 per
// generated one; Sheng et al. 2024, arXiv:2401.00588); then arrival.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>

namespace tessera::serve {

/// What decides the order of a request.
struct Turn {
  using Clock = std::chrono::steady_clock;
  int64_t priority = 0;
  std::string client;
  Clock::time_point arrived = {};
};

class TurnOrder {
 public:
  /// priorities: whether Turn::priority counts.
  explicit TurnOrder(bool priorities) : priorities_(priorities) {}

  /// The clients with a queued or running request. One that returns starts at the smallest count of
  /// those that stayed, so that absence earns no credit.
  void set_active(std::set<std::string> clients);
  void charge(const std::string& client, double tokens) { served_[client] += tokens; }
  double served(const std::string& client) const;
  /// Priority value, lowered by waiting; 0 without priorities.
  int64_t rank(const Turn& turn, Turn::Clock::time_point now) const;
  bool before(const Turn& a, const Turn& b, Turn::Clock::time_point now) const;

 private:
  bool priorities_;
  std::map<std::string, double> served_;
  std::set<std::string> active_;
};

/// Sequences that run and the state memory reserved for them, within their limits. A paused
/// sequence keeps its memory and holds no slot.
class StateBudget {
 public:
  /// sequences: most that run at a time. bytes: most memory; 0 = any. One sequence always fits.
  StateBudget(int64_t sequences, int64_t bytes) : most_(sequences), limit_(bytes) {}

  bool has_slot() const { return running_ < most_; }
  /// Whether one more sequence of `bytes` fits.
  bool fits(int64_t bytes) const { return fits_without(0, 0, bytes); }
  /// The same after `sequences` with `freed` bytes together have been preempted.
  bool fits_without(int64_t sequences, int64_t freed, int64_t bytes) const;
  /// Whether a sequence may grow from `held` bytes to `bytes`.
  bool may_grow(int64_t held, int64_t bytes) const;

  void add(int64_t bytes) { ++running_, bytes_ += bytes; }
  void remove(int64_t bytes, bool paused) { running_ -= paused ? 0 : 1, bytes_ -= bytes; }
  void pause() { --running_; }
  void resume() { ++running_; }
  void resize(int64_t held, int64_t bytes) { bytes_ += bytes - held; }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t most_, limit_;
  int64_t running_ = 0, bytes_ = 0;
};

/// A sequence that could be preempted: its state is freed and prefilled again later.
struct Preemptible {
  int64_t priority = 0;
  Turn::Clock::time_point arrived = {};
  int64_t bytes = 0;
  bool paused = false;  // its client does not read
  bool exempt = false;  // preempted often enough: only while it is paused
};

/// Index of the newest paused sequence; of equals the last.
std::optional<size_t> newest_paused(std::span<const Preemptible> all);
/// Index of the newest sequence among those with the highest priority value above `above` that are
/// neither paused nor exempt; of equals the last.
std::optional<size_t> preemption_victim(std::span<const Preemptible> all, int64_t above);
/// Whether preempting all of the latter makes room for a sequence of `bytes`.
bool preemption_suffices(std::span<const Preemptible> all,
                         int64_t above,
                         const StateBudget& budget,
                         int64_t bytes);

}  // namespace tessera::serve
