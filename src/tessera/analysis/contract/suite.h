// The contract suite: its checks as a list, and one of them on one case. contract_test runs all of
// them over all mechanisms, `tessera verify --mechanism` over one.
#pragma once

#include <span>
#include <string>

#include "tessera/analysis/contract/checks.h"

namespace tessera::contract {

struct Check {
  const char* name;
  const char* what;  // what holds where it passes, for tables
  void (*run)(const Case&, Report&);
};

std::span<const Check> checks();

struct Result {
  bool holds = false;
  std::string failures;             // a line each, indented
  const char* exception = nullptr;  // the reason of an exception (exceptions.h): it must not hold
  /// Whether it holds, or does not where there is an exception.
  bool as_expected() const { return holds == (exception == nullptr); }
};

/// Never throws: what a check throws is a failure.
Result run_check(const Case& part, const Check& check);

}  // namespace tessera::contract
