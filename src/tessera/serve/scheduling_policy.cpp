#include "tessera/serve/scheduling_policy.h"

#include <algorithm>
#include <tuple>

namespace tessera::serve {
namespace {

constexpr auto kRise = std::chrono::seconds(10);
constexpr size_t kClients = 4096;  // inactive clients whose counts are kept

bool may_give_way(const Preemptible& one, int64_t above) {
  return !one.paused && !one.exempt && one.priority > above;
}

}  // namespace

void TurnOrder::set_active(std::set<std::string> clients) {
  std::optional<double> least;
  for (const std::string& client : clients)
    if (active_.contains(client))
      least = std::min(least.value_or(served_[client]), served_[client]);
  for (const std::string& client : clients)
    if (least && !active_.contains(client)) served_[client] = std::max(served_[client], *least);
  if (served_.size() > kClients + clients.size())
    std::erase_if(served_, [&](const auto& one) { return !clients.contains(one.first); });
  active_ = std::move(clients);
}

double TurnOrder::served(const std::string& client) const {
  const auto found = served_.find(client);
  return found == served_.end() ? 0 : found->second;
}

int64_t TurnOrder::rank(const Turn& turn, Turn::Clock::time_point now) const {
  return priorities_ ? turn.priority - (now - turn.arrived) / kRise : 0;
}

bool TurnOrder::before(const Turn& a, const Turn& b, Turn::Clock::time_point now) const {
  const auto key = [&](const Turn& turn) {
    return std::tuple(rank(turn, now), served(turn.client), turn.arrived);
  };
  return key(a) < key(b);
}

bool StateBudget::fits_without(int64_t sequences, int64_t freed, int64_t bytes) const {
  const int64_t held = bytes_ - freed;
  return running_ - sequences < most_ && (limit_ == 0 || held == 0 || held + bytes <= limit_);
}

bool StateBudget::may_grow(int64_t held, int64_t bytes) const {
  const int64_t others = bytes_ - held;
  return limit_ == 0 || others <= 0 || others + bytes <= limit_;
}

std::optional<size_t> newest_paused(std::span<const Preemptible> all) {
  std::optional<size_t> found;
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].paused && (!found || all[i].arrived >= all[*found].arrived)) found = i;
  return found;
}

std::optional<size_t> preemption_victim(std::span<const Preemptible> all, int64_t above) {
  const auto key = [](const Preemptible& one) { return std::tuple(one.priority, one.arrived); };
  std::optional<size_t> found;
  for (size_t i = 0; i < all.size(); ++i)
    if (may_give_way(all[i], above) && (!found || key(all[i]) >= key(all[*found]))) found = i;
  return found;
}

bool preemption_suffices(std::span<const Preemptible> all,
                         int64_t above,
                         const StateBudget& budget,
                         int64_t bytes) {
  int64_t sequences = 0, freed = 0;
  for (const Preemptible& one : all)
    if (may_give_way(one, above)) ++sequences, freed += one.bytes;
  return budget.fits_without(sequences, freed, bytes);
}

}  // namespace tessera::serve
