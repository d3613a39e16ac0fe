// Do all replicas ask for the same? Compares what the trainers' programs open and begin; the coordinator keeps it.
//
//   ReplicaAgreement agreement(number_of_receivers);
//   if (auto complaint = agreement.opened(who, "train", 0, canonical_json)) refuse(*complaint);
//   if (auto complaint = agreement.began(who, "train", 0, epoch, first_step)) fail(*complaint);
//   agreement.forget();                        // `penstock serve`: no program is left at any receiver
//
// What is compared, and only that, so that a complaint is certain:
//   - the n-th opening of a split by one trainer's program with the n-th opening by each other's: the canonical JSON.
//   - the k-th cursor (epoch, first step) of that opening with each other's k-th. Beginning again at the same cursor is
//     not a new one: an iteration may be broken off at once (a sanity check, a picture of the first batch) on one
//     replica alone. A replica that begins fewer iterations than others is compared as far as it went; an evaluation,
//     whose cursor is always (0, 0), may be run by one replica only.
// Under `penstock serve` programs come and go. Programs at one receiver are counted from the last moment when there was
//   none at any receiver, and the i-th program of one receiver is compared with the i-th of the others.
// Thread-safety: none; the coordinator's. Ownership: values. Failure: none; a complaint is a sentence naming both
//   trainers and what differs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace penstock {

class ReplicaAgreement {
 public:
  struct Program {
    PeerId receiver = 0;
    int32_t replica = 0;
    int64_t program = 0;  // different for each program that the receiver has fed; under `penstock run` always the same
  };

  explicit ReplicaAgreement(size_t receivers) : receivers_(receivers) {}

  std::optional<std::string> opened(const Program& who, const std::string& split, int32_t opening,
                                    const std::string& json);
  std::optional<std::string> began(const Program& who, const std::string& split, int32_t opening, int64_t epoch,
                                   int64_t first_step);
  // How many programs the receiver had fed before this one, as opened() counts them.
  size_t program_number(const Program& who, const std::string& split) { return number_of(splits_[split], who); }
  void forget();

 private:
  struct Cursor {
    int64_t epoch = 0;
    int64_t step = 0;
    int32_t replica = 0;  // that had it first
    size_t reached_by = 1;
    friend bool operator==(const Cursor& a, const Cursor& b) { return a.epoch == b.epoch && a.step == b.step; }
  };
  struct Progress {
    int64_t count = 0;  // of cursors
    Cursor last;
  };
  struct Opening {
    std::string json;
    int32_t replica = 0;  // that opened it first
    std::map<PeerId, Progress> progress;
    std::map<int64_t, Cursor> cursors;  // by number; those that every receiver has reached are gone
  };
  struct Split {
    std::map<PeerId, std::vector<int64_t>> programs;
    std::map<std::pair<size_t, int32_t>, Opening> openings;  // by number of the program and of the opening
  };
  static size_t number_of(Split& split, const Program& who);

  size_t receivers_;
  std::map<std::string, Split> splits_;
};

}  // namespace penstock
