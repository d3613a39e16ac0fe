#include "runtime/receiver/port_record.h"

namespace penstock {
void PortRecord::chunk_arrived(const std::string& transport, size_t bytes) {
  received_bytes_ += static_cast<int64_t>(bytes);
  ++chunks_by_transport_[transport];
}

void PortRecord::chunk_done(Nanoseconds busy_ns, bool taken) {
  busy_ns_ += busy_ns;
  if (!taken) ++dropped_chunks_;
}

void PortRecord::delivered(int connection, const std::string& split, int64_t step, int64_t steps, const Delivery& delivery,
                           const StreamHash& hash, const std::vector<SampleRecord>& records) {
  book_.delivered(split, delivery, hash, records);
  clients_[connection].delivered(split, delivery, hash, records);
  latest_.split = split;
  latest_.arithmetic = delivery.arithmetic;
  latest_.epoch = delivery.epoch;
  latest_.step = step + 1;
  latest_.steps = steps;
}

void PortRecord::range_ended(int connection, const std::string& split, const DeliveredRange& range) {
  book_.range_ended(split, range);
  clients_[connection].range_ended(split, range);
}

PortFigures PortRecord::figures() const {
  PortFigures all = latest_;
  const DeliveryBook::Totals totals = book_.totals();
  all.images = totals.images;
  all.batches = totals.batches;
  all.wait_s = as_seconds(totals.wait_ns);
  all.elapsed_s = as_seconds(totals.elapsed_ns);
  return all;
}

nlohmann::json PortRecord::to_json(const std::vector<std::pair<std::string, DeliveredRange>>& open) const {
  return {{"port_busy_s", as_seconds(busy_ns_)},
          {"received_bytes", received_bytes_},
          {"dropped_chunks", dropped_chunks_},
          {"images_on_cards", images_on_cards_},
          {"chunks_by_transport", chunks_by_transport_},
          {"splits", book_.to_json(open)}};
}

nlohmann::json PortRecord::client_json(int connection,
                                       const std::vector<std::pair<std::string, DeliveredRange>>& open) const {
  const auto client = clients_.find(connection);
  return client == clients_.end() ? nlohmann::json::object() : client->second.to_json(open);
}

}  // namespace penstock
