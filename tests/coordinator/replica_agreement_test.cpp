// What replicas must agree on, and what they may do differently.
#include "runtime/coordinator/replica_agreement.h"

#include <doctest/doctest.h>

#include <random>

namespace penstock {
namespace {

using Program = ReplicaAgreement::Program;

// Canonical enough for first_difference().
std::string json(int batch) {
  return R"({"name":"train","split":{"batch_size":)" + std::to_string(batch) + "}}";
}

TEST_CASE("the n-th opening is compared with the n-th of the others") {
  ReplicaAgreement agreement(3);
  CHECK_FALSE(agreement.opened({0, 0}, "train", 0, json(1)));
  CHECK_FALSE(agreement.opened({0, 0}, "train", 1, json(2)));  // a second loader of this program, of another size
  CHECK_FALSE(agreement.opened({5, 2}, "train", 0, json(1)));
  CHECK_FALSE(agreement.opened({5, 2}, "val", 0, json(9)));
  const auto complaint = agreement.opened({1, 1}, "train", 0, json(2));
  REQUIRE(complaint);
  CHECK(complaint->find("trainer 1 opens split 'train' differently from trainer 0") != std::string::npos);
  CHECK(complaint->find("batch_size") != std::string::npos);
  CHECK_FALSE(agreement.opened({5, 2}, "train", 1, json(2)));
}

TEST_CASE("the k-th cursor is compared, whenever it comes") {
  ReplicaAgreement agreement(2);
  for (int epoch = 0; epoch < 5; ++epoch) CHECK_FALSE(agreement.began({0, 0}, "train", 0, epoch, 0));
  for (int epoch = 0; epoch < 3; ++epoch) CHECK_FALSE(agreement.began({1, 1}, "train", 0, epoch, 0));
  const auto complaint = agreement.began({1, 1}, "train", 0, 4, 2);
  REQUIRE(complaint);
  CHECK(
      *complaint ==
      "trainer 1 begins an iteration over split 'train' at epoch 4, step 2, where trainer 0 began at epoch 3, step 0");
}

TEST_CASE("beginning again at the same cursor is no new one; evaluation may be one replica's alone") {
  ReplicaAgreement agreement(2);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(agreement.began({0, 0}, "train", 0, 0, 0));  // a sanity check, a picture
  CHECK_FALSE(agreement.began({1, 1}, "train", 0, 0, 0));
  for (int i = 0; i < 100; ++i) CHECK_FALSE(agreement.began({0, 0}, "val", 0, 0, 0));
  CHECK_FALSE(agreement.began({0, 0}, "train", 0, 1, 0));
  CHECK_FALSE(agreement.began({1, 1}, "train", 0, 1, 0));
}

TEST_CASE("programs of other times are not compared") {
  ReplicaAgreement agreement(2);
  CHECK_FALSE(agreement.began({0, 0, 1}, "train", 0, 0, 0));
  CHECK_FALSE(agreement.began({1, 1, 1}, "train", 0, 0, 0));
  // Trainer 0's program is started again and resumes, while the old one of trainer 1 has not gone yet.
  CHECK_FALSE(agreement.opened({0, 0, 2}, "train", 0, json(4)));
  CHECK_FALSE(agreement.began({0, 0, 2}, "train", 0, 7, 5));
  CHECK_FALSE(agreement.began({1, 1, 1}, "train", 0, 1, 0));
  // Their second programs are.
  CHECK(agreement.opened({1, 1, 9}, "train", 0, json(3)));
  CHECK(agreement.began({1, 1, 9}, "train", 0, 0, 0));
  agreement.forget();
  CHECK_FALSE(agreement.began({1, 1, 10}, "train", 0, 0, 0));
  CHECK_FALSE(agreement.began({0, 0, 3}, "train", 0, 0, 0));
  CHECK(agreement.began({1, 1, 10}, "train", 0, 1, 1).has_value() == false);
  CHECK(agreement.began({0, 0, 3}, "train", 0, 1, 0));
}

TEST_CASE("whatever the timing: equal sequences never complain, and one difference always does") {
  constexpr uint64_t kSeed = 411;
  MESSAGE("seed " << kSeed);
  std::mt19937_64 random(kSeed);
  int differences = 0;
  for (int round = 0; round < 500; ++round) {
    const int receivers = 2 + static_cast<int>(random() % 4);
    const int count = 1 + static_cast<int>(random() % 20);
    std::vector<std::vector<std::pair<int64_t, int64_t>>> cursors(static_cast<size_t>(receivers));
    for (int k = 0; k < count; ++k) {
      for (auto& mine : cursors) mine.emplace_back(k, static_cast<int64_t>(k % 3));
    }
    const bool differ = random() % 2 == 0;
    if (differ) ++cursors[random() % static_cast<size_t>(receivers)][random() % static_cast<size_t>(count)].second;
    differences += differ ? 1 : 0;
    ReplicaAgreement agreement(static_cast<size_t>(receivers));
    std::vector<size_t> at(static_cast<size_t>(receivers), 0);
    bool complained = false;
    for (int left = receivers * count; left > 0;) {
      const size_t receiver = random() % static_cast<size_t>(receivers);
      if (at[receiver] == cursors[receiver].size()) continue;
      const auto [epoch, step] = cursors[receiver][at[receiver]++];
      const Program who{static_cast<PeerId>(receiver), static_cast<int32_t>(receiver)};
      for (uint64_t again = random() % 2; again < 2; ++again) {
        complained = agreement.began(who, "train", 0, epoch, step).has_value() || complained;
      }
      --left;
    }
    REQUIRE(complained == differ);
  }
  CHECK(differences > 100);
}

TEST_CASE("one receiver has nobody to agree with") {
  ReplicaAgreement agreement(1);
  CHECK_FALSE(agreement.opened({0, 0}, "train", 0, json(1)));
  CHECK_FALSE(agreement.opened({0, 0}, "train", 0, json(2)));
  CHECK_FALSE(agreement.began({0, 0}, "train", 0, 5, 5));
}

}  // namespace
}  // namespace penstock
