// What went through a receiver so far: chunks in, batches out, and where the split delivered last stands.
//
//   ReceiverStatistics statistics;
//   statistics.chunk_arrived("shm", payload.size());   statistics.chunk_done(busy_ns, taken);
//   statistics.delivered(connection, "train", step, steps, {arithmetic, mode, epoch, images, wait_ns, elapsed_ns},
//                        batch_buffer.hash, batch_buffer.records);
//   statistics.on_gpus(images);                           // of the batch delivered
//   statistics.range_ended(connection, "train", range);   // an iteration ended, or broke off
//   statistics.figures();                                 // for progress lines
//   statistics.to_json(open_ranges);                      // for the job's report (report/report.h)
//   statistics.client_json(connection, its_open_ranges);  // what one client's DataLoader got of it
//
// Invariant: a batch is in the figures, in the hashes and in the list of unusable samples, or in none of them; it
//   enters when next() is answered with it. A chunk is counted when it arrives, whatever becomes of it: received_bytes
//   and chunks_by_transport say what the transports did, dropped_chunks how much of it was in vain.
// Thread-safety: the receiver's event loop alone. Failure: none.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/arithmetic.h"
#include "runtime/base/clock.h"
#include "runtime/receiver/delivery_ledger.h"

namespace penstock {

struct ReceiverFigures {
  int64_t images = 0;
  int64_t batches = 0;
  double wait_s = 0;     // from the program's next() to the answer
  double elapsed_s = 0;  // first next() to last answer
  std::string split;
  Arithmetic arithmetic = Arithmetic::exact;
  int64_t epoch = 0;
  int64_t step = 0;   // batches of the epoch that are delivered
  int64_t steps = 0;  // of an epoch
};

class ReceiverStatistics {
 public:
  void chunk_arrived(const std::string& transport, size_t bytes);
  void chunk_done(Nanoseconds busy_ns, bool taken);
  void compared() { ++compared_chunks_; }  // made twice, and equal

  // `connection`: of the client; `step` of an epoch of `steps`.
  void delivered(int connection, const std::string& split, int64_t step, int64_t steps, const Delivery& delivery,
                 const StreamHash& hash, const std::vector<SampleRecord>& records);
  // Counts those images that the program takes from loaders' GPUs.
  void on_gpus(int64_t images) { images_on_gpus_ += images; }
  void range_ended(int connection, const std::string& split, const DeliveredRange& range);
  void client_gone(int connection) { clients_.erase(connection); }

  ReceiverFigures figures() const;
  // `open` holds the iterations that are still going on: a program may end, or ask, in the middle of one.
  nlohmann::json to_json(const std::vector<std::pair<std::string, DeliveredRange>>& open) const;
  // By split, as in to_json()["splits"]; `open` holds that client's iterations.
  nlohmann::json client_json(int connection, const std::vector<std::pair<std::string, DeliveredRange>>& open) const;

 private:
  DeliveryLedger ledger_;
  std::map<int, DeliveryLedger> clients_;  // by connection, while there is one
  ReceiverFigures latest_;                 // split, epoch and step of the last delivery
  std::map<std::string, int64_t> chunks_by_transport_;
  Nanoseconds busy_ns_ = 0;
  int64_t received_bytes_ = 0;
  int64_t dropped_chunks_ = 0;
  int64_t compared_chunks_ = 0;
  int64_t images_on_gpus_ = 0;
};

}  // namespace penstock
