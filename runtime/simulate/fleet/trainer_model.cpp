#include "runtime/simulate/fleet/trainer_model.h"

#include <algorithm>

#include "runtime/simulate/fleet/fleet_coordinator.h"
#include "runtime/simulate/fleet/fleet_world.h"
#include "runtime/simulate/fleet/loader_model.h"

namespace penstock {

TrainerModel::TrainerModel(FleetParts& parts, ReceiverId id) : parts_(parts), id_(id) {}

LeaseStreamId TrainerModel::lease_stream() const noexcept {
  return static_cast<LeaseStreamId>(parts_.epoch * parts_.trainer_count() + id_ + 1);
}

void TrainerModel::open_epoch() {
  cursor_ = next_reserve_ = 0;
  first_asked_at_ = last_answered_at_ = stepped_at_ = -1;
  open_ = false;
  parts_.links.message(node(), parts_.node_of_coordinator(), [this] { parts_.coordinator->open_stream(id_); });
}

void TrainerModel::ready() {
  open_ = true;
  reserve();
}

void TrainerModel::reserve() {
  if (!open_) return;
  const int64_t ahead = cursor_ + std::max(1, parts_.spec.prefetch) + (waiting_ ? 1 : 0);
  const int64_t batch_buffers = std::max(2, parts_.spec.prefetch) + 1 + parts_.spec.hold;
  while (next_reserve_ < parts_.steps && next_reserve_ < ahead && std::ssize(batches_) + held_ < batch_buffers) {
    const int32_t chunks = parts_.chunks_of(next_reserve_);
    batches_.push_back({chunks, std::vector<bool>(static_cast<size_t>(chunks), false), 0});
    parts_.links.message(node(), parts_.node_of_coordinator(),
                         [this, lease_stream = lease_stream(), step = next_reserve_] {
                           parts_.coordinator->batch_buffer_free(lease_stream, step);
                         });
    ++next_reserve_;
  }
}

void TrainerModel::ask() {
  waiting_ = true;
  asked_at_ = parts_.loop.now();
  if (first_asked_at_ < 0) first_asked_at_ = asked_at_;
  reserve();
  parts_.links.message(node(), parts_.node_of_coordinator(), [this, lease_stream = lease_stream(), cursor = cursor_] {
    parts_.coordinator->receive(CursorMoved{lease_stream, cursor, true});
  });
  serve();
}

void TrainerModel::chunk_came(uint32_t place) {
  const OverheadModel& overhead = parts_.spec.overhead;
  const auto bytes = static_cast<double>(parts_.leases[place].samples * parts_.spec.samples.payload_bytes);
  const Nanoseconds copying =
      overhead.receiver_chunk_ns + static_cast<Nanoseconds>(overhead.receiver_ns_per_byte * bytes);
  static const SpeedProfile full;
  const Nanoseconds now = parts_.loop.now();
  const Nanoseconds end = event_loop_.serve(now, copying, full).end;
  if (end <= now) return take(place);
  parts_.loop.at(end, [this, place] { take(place); });
}

void TrainerModel::take(uint32_t place) {
  const Nanoseconds now = parts_.loop.now();
  FleetLease& lease = parts_.leases[place];
  parts_.chunks_on_their_way.leave(now, lease.sent_at);
  lease.place = FleetLease::Place::nowhere;
  if (parts_.spans != nullptr) {
    parts_.spans->push_back(
        {FleetSpan::What::travel, lease.loader, lease.sent_at, now, lease.key.step, lease.key.chunk, id_});
  }
  LoaderModel& loader = parts_.loaders[static_cast<size_t>(lease.loader)];
  if (loader.node() == node()) {
    parts_.links.message(node(), node(), [&loader, place] { loader.returned(place); });
  }
  const int64_t ahead = lease.key.step - cursor_;
  Batch* const batch = lease.key.lease_stream == lease_stream() && ahead >= 0 && ahead < std::ssize(batches_)
                           ? &batches_[static_cast<size_t>(ahead)]
                           : nullptr;
  const bool wanted = batch != nullptr && !batch->chunks[static_cast<size_t>(lease.key.chunk)];
  if (!wanted && !is_remake(lease.key)) {
    parts_.leases.drop(place);
    return;
  }
  parts_.log.note(now, "take", id_, static_cast<int64_t>(lease.key.lease_stream),
                  lease.key.step * 100'000 + lease.key.chunk);
  parts_.links.message(node(), parts_.node_of_coordinator(), [this, place] { parts_.coordinator->accepted(place); });
  if (!wanted || is_remake(lease.key)) return;
  batch->chunks[static_cast<size_t>(lease.key.chunk)] = true;
  if (--batch->missing > 0) return;
  batch->ready_at = now;
  parts_.batches_ready.enter(now);
  serve();
}

void TrainerModel::serve() {
  if (!waiting_ || batches_.empty() || batches_.front().missing > 0) return;
  const Nanoseconds now = parts_.loop.now();
  parts_.log.note(now, "batch", id_, cursor_, now - asked_at_);
  parts_.batches_ready.leave(now, batches_.front().ready_at);
  batches_.pop_front();
  waiting_ = false;
  stepping_ = true;
  const bool counts = parts_.epoch > 0 || cursor_ >= parts_.spec.warmup_steps;
  parts_.on_batch(now - asked_at_, counts);
  if (counts) {
    waited_ns_ += now - asked_at_;
    if (stepped_at_ >= 0) at_barrier_ns_ += asked_at_ - stepped_at_;
    elapsed_ns_ += now - std::max(first_asked_at_, last_answered_at_);
    ++batches_taken_;
  }
  last_answered_at_ = now;
  if (parts_.spans != nullptr) parts_.spans->push_back({FleetSpan::What::wait, id_, asked_at_, now, cursor_, 0, id_});
  ++cursor_;
  ++held_;
  parts_.links.message(node(), parts_.node_of_coordinator(), [this, lease_stream = lease_stream(), cursor = cursor_] {
    parts_.coordinator->receive(CursorMoved{lease_stream, cursor, false});
  });
  reserve();
  parts_.loop.after(parts_.spec.overhead.hand_over_ns, [this] { step(); });
}

void TrainerModel::step() {
  if (held_ > 1) {  // the one before
    --held_;
    reserve();
  }
  SeededRandom random = parts_.costs.number(4, (parts_.epoch * parts_.steps + cursor_) * parts_.trainer_count() + id_);
  const Nanoseconds takes = parts_.spec.trainers[static_cast<size_t>(id_)].step_ns.draw(random);
  const Nanoseconds now = parts_.loop.now();
  if (parts_.spans != nullptr)
    parts_.spans->push_back({FleetSpan::What::step, id_, now, now + takes, cursor_ - 1, 0, id_});
  parts_.loop.after(takes, [this] { stepped(); });
}

void TrainerModel::stepped() {
  stepping_ = false;
  stepped_at_ = parts_.loop.now();
  if (cursor_ == parts_.steps) held_ = 0;
  parts_.on_stepped(id_);
}

}  // namespace penstock
