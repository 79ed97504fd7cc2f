#include <gtest/gtest.h>

#include "tessera/spec/mechanism.h"

namespace tessera::spec::parameters_test {
namespace {

ParamDecl added(ParamDecl decl) {
  ParamList list;
  list.add(std::move(decl));
  return list.all().front();
}

TEST(ParamDecl, RolesSayWhatMayBeCutAdaptedAndQuantised) {
  const ParamDecl matrix = added({"w", {4, 3}, Init::normal(1)});
  EXPECT_EQ(matrix.axis_of(Role::out), 0);
  EXPECT_EQ(matrix.axis_of(Role::in), 1);
  EXPECT_EQ(matrix.axis_of(Role::expert), -1);
  EXPECT_EQ(matrix.shard_axis(), 0);
  EXPECT_TRUE(matrix.adapts() && matrix.quantises() && matrix.decays());

  const ParamDecl experts = added({"w",
                                   {8, 4, 3},
                                   Init::normal(1),
                                   ParamKind::matrix,
                                   {Role::expert, Role::out, Role::in},
                                   0.25});
  EXPECT_EQ(experts.shard_axis(), 0);
  EXPECT_TRUE(experts.adapts() && experts.quantises());

  const ParamDecl table =
      added({"t", {50, 3}, Init::normal(1), ParamKind::embedding, {Role::vocabulary, Role::in}});
  EXPECT_EQ(table.shard_axis(), 0);
  EXPECT_TRUE(table.quantises());
  EXPECT_FALSE(table.adapts());

  const ParamDecl places =
      added({"p", {9, 2}, Init::normal(1), ParamKind::embedding, {Role::position, Role::head}});
  EXPECT_EQ(places.shard_axis(), 1);
  EXPECT_FALSE(places.quantises() || places.adapts());

  const ParamDecl norm = added({"n", {3}, Init::constant(1), ParamKind::norm});
  EXPECT_EQ(norm.shard_axis(), -1);
  EXPECT_FALSE(norm.quantises() || norm.adapts() || norm.decays());
}

TEST(ParamDecl, DecayMayBeSaid) {
  EXPECT_FALSE(
      added({"w", {4, 3}, Init::normal(1), ParamKind::matrix, {}, 1, true, Decay::no}).decays());
  EXPECT_TRUE(
      added({"n", {3}, Init::constant(1), ParamKind::norm, {}, 1, true, Decay::yes}).decays());
}

TEST(ParamList, RefusesRolesThatAreMissingOrTooMany) {
  ParamList list;
  EXPECT_THROW(list.add({"t", {5, 3}, Init::normal(1), ParamKind::embedding}), Error);
  EXPECT_THROW(list.add({"w", {2, 5, 3}, Init::normal(1), ParamKind::matrix}), Error);
  EXPECT_THROW(list.add({"w", {5, 3}, Init::normal(1), ParamKind::matrix, {Role::out}}), Error);
}

TEST(ParamList, KnowsWhatItGoesWithout) {
  ParamList list("layers.0");
  list.linear("q", 4, 3, false);
  list.linear("o", 4, 3, true);
  list.add_if(false, {"gate", {4}, Init::constant(0), ParamKind::structural});
  EXPECT_EQ(list.absent(), (std::vector<std::string>{"layers.0.q.bias", "layers.0.gate"}));
  ParamList all;
  all.append(list);
  EXPECT_EQ(all.absent().size(), 2u);
}

}  // namespace
}  // namespace tessera::spec::parameters_test
