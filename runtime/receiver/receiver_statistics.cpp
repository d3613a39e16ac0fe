#include "runtime/receiver/receiver_statistics.h"

namespace penstock {
void ReceiverStatistics::chunk_arrived(const std::string& transport, size_t bytes) {
  received_bytes_ += static_cast<int64_t>(bytes);
  ++chunks_by_transport_[transport];
}

void ReceiverStatistics::chunk_done(Nanoseconds busy_ns, bool taken) {
  busy_ns_ += busy_ns;
  if (!taken) ++dropped_chunks_;
}

void ReceiverStatistics::delivered(int connection, const std::string& split, int64_t step, int64_t steps,
                                   const Delivery& delivery, const StreamHash& hash,
                                   const std::vector<SampleRecord>& records) {
  ledger_.delivered(split, delivery, hash, records);
  clients_[connection].delivered(split, delivery, hash, records);
  latest_.split = split;
  latest_.arithmetic = delivery.arithmetic;
  latest_.epoch = delivery.epoch;
  latest_.step = step + 1;
  latest_.steps = steps;
}

void ReceiverStatistics::range_ended(int connection, const std::string& split, const DeliveredRange& range) {
  ledger_.range_ended(split, range);
  clients_[connection].range_ended(split, range);
}

ReceiverFigures ReceiverStatistics::figures() const {
  ReceiverFigures all = latest_;
  const DeliveryLedger::Totals totals = ledger_.totals();
  all.images = totals.images;
  all.batches = totals.batches;
  all.wait_s = as_seconds(totals.wait_ns);
  all.elapsed_s = as_seconds(totals.elapsed_ns);
  return all;
}

nlohmann::json ReceiverStatistics::to_json(const std::vector<std::pair<std::string, DeliveredRange>>& open) const {
  return {{"receiver_busy_s", as_seconds(busy_ns_)}, {"received_bytes", received_bytes_},
          {"dropped_chunks", dropped_chunks_},       {"compared_chunks", compared_chunks_},
          {"images_on_gpus", images_on_gpus_},       {"chunks_by_transport", chunks_by_transport_},
          {"splits", ledger_.to_json(open)}};
}

nlohmann::json ReceiverStatistics::client_json(int connection,
                                               const std::vector<std::pair<std::string, DeliveredRange>>& open) const {
  const auto client = clients_.find(connection);
  return client == clients_.end() ? nlohmann::json::object() : client->second.to_json(open);
}

}  // namespace penstock
