#include "tests/simulate/faults/sim_client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/simulate/faults/sim_executor.h"

namespace penstock {

SimClient::SimClient(EventLoop& loop, UniqueFd socket, Script script, std::function<void()> receivers_turn)
    : loop_(loop), socket_(std::move(socket)), script_(std::move(script)), receivers_turn_(std::move(receivers_turn)) {
  send(ClientOpen{script_.split_json, -1, -1});
}

void SimClient::send(const ClientMessage& message) {
  socket_.send(encode_client(message));
  sent_ = true;
}

bool SimClient::turn() {
  Packet packet;
  while (state_ != State::finished && socket_.receive(packet)) {
    handle(decode_client(packet.bytes), std::move(packet.fd));
  }
  if (socket_.closed() && state_ != State::finished) {
    if (refusal_.empty()) refusal_ = "the receiver hung up";
    state_ = State::finished;
  }
  return std::exchange(sent_, false);
}

void SimClient::fail(const std::string& why) {
  if (failure_.empty()) {
    failure_ = "epoch " + std::to_string(epoch_) + ", batch " + std::to_string(taken_) + ": " + why;
  }
}

void SimClient::handle(const ClientMessage& message, UniqueFd fd) {
  if (const auto* opened = std::get_if<ClientOpened>(&message)) {
    opened_ = *opened;
    opening_took_ = loop_.now();  // it asks when the world begins
    begin_epoch();
  } else if (const auto* refused = std::get_if<ClientRefused>(&message)) {
    refusal_ = refused->error;
    state_ = State::finished;
  } else if (const auto* iteration = std::get_if<ClientIteration>(&message)) {
    iteration_ = *iteration;
    batch_buffer_bytes_[iteration_.pool] = iteration_.batch_buffer_bytes;
    if (iteration_.with_memory) {
      pools_[iteration_.pool] = SharedMemory::open(
          std::move(fd), iteration_.batch_buffer_bytes * static_cast<size_t>(iteration_.batch_buffers),
          SharedMemory::Access::read_write);
    }
    ask();
  } else if (const auto* batch = std::get_if<ClientBatch>(&message)) {
    take(*batch);
  } else if (std::holds_alternative<ClientEnd>(message)) {
    if (taken_ != opened_.steps) fail("the end came after " + std::to_string(taken_) + " batches");
    end_epoch(false);
  } else if (const auto* failed = std::get_if<ClientFailed>(&message)) {
    refusal_ = failed->error;
    state_ = State::finished;
  }
}

void SimClient::begin_epoch() {
  if (epoch_ == script_.epochs.size()) {
    for (const ClientBatch& one : std::exchange(held_, {})) let_go(one);
    state_ = State::finished;
    return;
  }
  taken_ = 0;
  state_ = State::beginning;
  send(ClientIterate{opened_.split_id, static_cast<int64_t>(epoch_), 0, {}});
}

void SimClient::ask() {
  state_ = State::waiting;
  asked_at_ = loop_.now();
  send(ClientNext{iteration_.iteration});
}

void SimClient::take(const ClientBatch& batch) {
  if (state_ != State::waiting) return fail("a batch came that nobody asked for");
  longest_wait_ = std::max(longest_wait_, loop_.now() - asked_at_);
  if (batch.step != taken_ || batch.epoch != static_cast<int64_t>(epoch_)) {
    fail("epoch " + std::to_string(batch.epoch) + ", step " + std::to_string(batch.step) + " came");
  }
  if (script_.checks) check(batch);
  ++taken_;
  ++batches_;
  held_.push_back(batch);
  state_ = State::stepping;
  loop_.after(script_.step_takes(), [this] {
    while (std::ssize(held_) > script_.hold) {
      let_go(held_.front());
      held_.erase(held_.begin());
    }
    if (taken_ == script_.epochs[epoch_].batches) {
      end_epoch(true);
    } else {
      ask();
    }
    receivers_turn_();
  });
}

// It must still be what it was: memory that is in use is nobody else's.
void SimClient::let_go(const ClientBatch& batch) {
  if (script_.checks) check(batch);
  send(ClientRelease{batch.pool, batch.batch_buffer});
}

// Labels and images are those of the indices, to the last byte.
void SimClient::check(const ClientBatch& batch) {
  const BatchBufferLayout layout = batch_buffer_layout(opened_.fields, script_.batch_size);
  const std::byte* base =
      pools_.at(batch.pool).data() + batch_buffer_bytes_.at(batch.pool) * static_cast<size_t>(batch.batch_buffer);
  const size_t bytes = opened_.fields[0].bytes_per_sample();
  std::vector<std::byte> expected(bytes);
  for (size_t i = 0; i < static_cast<size_t>(batch.samples); ++i) {
    int64_t index = 0;
    int64_t label = 0;
    std::memcpy(&index, base + layout.indices + i * sizeof index, sizeof index);
    std::memcpy(&label, base + layout.fields[1] + i * sizeof label, sizeof label);
    if (index < 0 || index >= opened_.dataset_size) return fail("index " + std::to_string(index));
    fill_sim_image(index, 0, batch.epoch, expected);
    if (label != sim_label(index)) fail("the label of sample " + std::to_string(index) + " is another's");
    if (std::memcmp(base + layout.fields[0] + i * bytes, expected.data(), bytes) != 0) {
      fail("the image of sample " + std::to_string(index) + " is another's");
    }
  }
}

void SimClient::end_epoch(bool broken_off) {
  if (broken_off) send(ClientStop{iteration_.iteration});
  ++epoch_;
  begin_epoch();
}

}  // namespace penstock
