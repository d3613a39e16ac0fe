#include "runtime/receiver/passes.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/coordinator/epoch_plan.h"
#include "runtime/receiver/chunk_intake.h"
#include "runtime/receiver/slot_dump.h"

namespace penstock {

void Passes::begin(int connection, const ClientIterate& message) {
  const PortSplit* split = splits_.find_opened(message.split_id);
  if (split == nullptr || split->connection != connection) throw Error(ErrorKind::usage, "the split was not opened");
  const PlanShape plan = plan_of(*split, message);
  if (message.epoch > 0xFFFFFFFF) {
    throw Error(ErrorKind::usage,
                "epoch " + std::to_string(message.epoch) + " is beyond 2^32 - 1, the last that draws know");
  }
  if (message.first_step < 0 || message.first_step > plan.steps || message.epoch < 0) {
    throw Error(ErrorKind::usage, "no step " + std::to_string(message.first_step) + " in an epoch of " +
                                      std::to_string(plan.steps) + " steps");
  }
  SlotPool& pool = pool_for(*split);
  Pass pass;
  pass.id = next_stream();
  pass.connection = connection;
  pass.split_id = split->id;
  pass.pool = pool.id;
  pass.epoch = message.epoch;
  pass.plan = plan;
  pass.first_step = pass.cursor = pass.next_reserve = message.first_step;
  pool.stream = pass.id;
  const bool with_memory = !pool.shown;
  pool.shown = true;
  messenger_.to_client(
      connection,
      ClientStream{pass.id, pool.id, static_cast<int32_t>(pool.slots.size()), pool.layout.total_bytes, with_memory},
      with_memory ? pool.memory.fd() : -1);
  const bool on_cards = split->card_images && !dumps(options_);
  if (on_cards) shares_.read_by(connection, split->process);
  pass.card_reader = on_cards ? connection : 0;
  if (on_cards) pass.order = message.order;
  const StreamId id = pass.id;
  open_stream(passes_[id] = std::move(pass), message.order);
}

// Unique in the job: the port's number above a counter.
StreamId Passes::next_stream() {
  return (uint64_t{static_cast<uint32_t>(options_.self)} + 1) << 32 | next_stream_++;
}

void Passes::open_stream(Pass& pass, const std::vector<int64_t>& order) {
  const bool again = pass.lease_stream != 0;
  pass.lease_stream = again ? next_stream() : pass.id;
  by_lease_stream_[pass.lease_stream] = pass.id;
  pass.next_reserve = pass.cursor;
  pass.chunk_samples = 0;
  const PortSplit& split = splits_.at(pass.split_id);
  messenger_.to_coordinator(OpenStream{pass.lease_stream, split.fingerprint, options_.replica, pass.epoch, pass.cursor,
                                       order, split.program, split.opening, pass.card_reader, again});
}

void Passes::close_stream(Pass& pass) {
  if (const auto pool = pools_.find(pass.pool); pool != pools_.end()) {
    for (const auto& [step, slot] : pass.slots) free(pool->second.slots[static_cast<size_t>(slot)]);
  }
  pass.slots.clear();
  by_lease_stream_.erase(pass.lease_stream);
  messenger_.to_coordinator(CloseStream{pass.lease_stream});
}

void Passes::make_again(Pass& pass) {
  if (pass.failed) return;
  close_stream(pass);
  open_stream(pass, pass.order);
  if (pass.waiting) messenger_.to_coordinator(CursorAt{pass.lease_stream, pass.cursor, true});
}

void Passes::loader_lost(PeerId loader) {
  for (auto& [id, pass] : passes_) {
    const SlotPool& pool = pools_.at(pass.pool);
    const bool lost = std::any_of(pass.slots.begin(), pass.slots.end(), [&](const auto& item) {
      const auto& pieces = pool.slots[static_cast<size_t>(item.second)].pieces;
      return std::any_of(pieces.begin(), pieces.end(), [&](const SlotPiece& piece) {
        return piece.loader == loader && !shares_.readable(piece.share);
      });
    });
    if (lost) make_again(pass);
  }
}

Passes::Pass* Passes::find(int connection, StreamId id) {
  const auto it = passes_.find(id);
  return it == passes_.end() || it->second.connection != connection ? nullptr : &it->second;
}

Passes::Pass* Passes::of_lease_stream(StreamId lease_stream) {
  const auto it = by_lease_stream_.find(lease_stream);
  return it == by_lease_stream_.end() ? nullptr : &passes_.at(it->second);
}

SlotPool& Passes::pool_for(const PortSplit& split) {
  for (auto& [id, pool] : pools_) {
    if (pool.split_id == split.id && pool.stream == 0) return pool;
  }
  SlotPool pool;
  pool.id = next_pool_++;
  pool.split_id = split.id;
  pool.layout = slot_layout(split.fields, split.shape.batch_size);
  // One in use, `prefetch` ahead (two at least), and what the program may keep besides.
  pool.slots.resize(static_cast<size_t>(std::max(2, options_.prefetch) + 1 + options_.hold));
  const std::string& name = split.resolved.name;
  try {
    pool.memory = SharedMemory::create("penstock-slots", pool.layout.total_bytes * pool.slots.size());
  } catch (const Error& error) {
    throw Error(error.kind(),
                error.message() + ", for " + std::to_string(pool.slots.size()) + " batches of " +
                    std::to_string(split.shape.batch_size) + " samples of split '" + name + "'",
                "lower splits." + name + ".batch_size, loader.prefetch or trainer.hold");
  }
  return pools_.emplace(pool.id, std::move(pool)).first->second;
}

void Passes::ready(const StreamReady& message) {
  Pass* const pass = of_lease_stream(message.stream);
  if (pass == nullptr) return;
  pass->chunk_samples = message.chunk_samples;
  reserve(*pass);
}

void Passes::failed(const StreamFailed& message) {
  Pass* const pass = of_lease_stream(message.stream);
  if (pass == nullptr) return;
  pass->failed = ClientFailed{message.error_kind, message.error, message.remedy, pass->id};
  serve(*pass);
}

// Takes slots for the next steps, as far ahead as prefetch allows.
void Passes::reserve(Pass& pass) {
  if (pass.chunk_samples == 0 || pass.failed) return;
  const PortSplit& split = splits_.at(pass.split_id);
  SlotPool& pool = pools_.at(pass.pool);
  // The step being waited for comes on top of `prefetch` ones.
  const int64_t ahead = pass.cursor + std::max(1, options_.prefetch) + (pass.waiting ? 1 : 0);
  while (pass.next_reserve < pass.plan.steps && pass.next_reserve < ahead) {
    const int32_t index = pool.find_free();
    if (index < 0) break;
    Slot& slot = pool.slots[static_cast<size_t>(index)];
    const int64_t samples =
        std::min(split.shape.batch_size, pass.plan.samples_per_replica - pass.next_reserve * split.shape.batch_size);
    begin_slot(split, pass.next_reserve, samples, pass.chunk_samples, keeps_raw(options_), slot);
    pass.slots[slot.step] = index;
    messenger_.to_coordinator(SlotFree{pass.lease_stream, pass.next_reserve});
    ++pass.next_reserve;
  }
}

bool Passes::take(const ChunkHeader& header, std::vector<SampleRecord>& records, const ChunkArrived& arrived) {
  std::optional<int32_t> share;
  const bool taken = put(header, records, arrived, share);
  if (header.piece && !share) shares_.give_back(arrived.peer, *header.piece, {});
  return taken;
}

// `share`: where its images stay on their card.
bool Passes::put(const ChunkHeader& header, std::vector<SampleRecord>& records, const ChunkArrived& arrived,
                 std::optional<int32_t>& share) {
  Pass* const found = of_lease_stream(header.lease.stream);
  if (found == nullptr) return false;
  Pass& pass = *found;
  const PortSplit& split = splits_.at(pass.split_id);
  const auto place = pass.slots.find(header.lease.step);
  if (place == pass.slots.end()) return false;
  SlotPool& pool = pools_.at(pass.pool);
  const Slot& slot = pool.slots[static_cast<size_t>(place->second)];
  if (!wanted(slot, header)) return false;
  const bool on_cards = header.piece && split.card_images && !dumps(options_);
  const bool nowhere_else =
      std::any_of(records.begin(), records.end(), [](const SampleRecord& one) { return one.pixel_hash.has_value(); });
  if (nowhere_else && !on_cards) {
    throw Error(ErrorKind::peer_lost,
                "rank " + std::to_string(arrived.peer) + " left images on its card" +
                    (header.piece ? ", which nobody asked for" : ", and says not where"),
                "all ranks must run the same version of penstock");
  }
  const std::optional<int32_t> known =
      on_cards ? shares_.keep(pass.connection, arrived.peer, *header.piece, nowhere_else) : std::nullopt;
  if (nowhere_else && !known) {
    // Of a loader that was lost: another one makes it again. Of one that lives, its link has ended meanwhile.
    if (shares_.link_ended(arrived.peer, *header.piece)) make_again(pass);
    return false;
  }
  take_chunk(split, {arrived.peer, pass.epoch, pass.chunk_samples, options_.replica}, pool, place->second, header,
             records, arrived.payload, known);
  share = known;
  return true;
}

void Passes::next(int connection, const ClientNext& message) {
  Pass* const found = find(connection, message.stream);
  if (found == nullptr) {
    messenger_.to_client(connection, ClientFailed{static_cast<int32_t>(ErrorKind::usage), "this iteration has ended",
                                                  "start a new one with begin()", message.stream});
    return;
  }
  Pass& pass = *found;
  pass.waiting = true;
  pass.asked_at = clock_.now();
  if (pass.first_asked == 0) pass.first_asked = pass.asked_at;
  reserve(pass);
  messenger_.to_coordinator(CursorAt{pass.lease_stream, pass.cursor, true});
  serve(pass);
}

void Passes::serve(StreamId lease_stream) {
  if (Pass* const pass = of_lease_stream(lease_stream)) serve(*pass);
}

void Passes::serve(Pass& pass) {
  if (!pass.waiting) return;
  if (pass.failed) {
    answer(pass, *pass.failed);
    return;
  }
  if (pass.cursor >= pass.plan.steps) {
    answer(pass, ClientEnd{pass.id});
    return;
  }
  const PortSplit& split = splits_.at(pass.split_id);
  SlotPool& pool = pools_.at(pass.pool);
  const auto it = pass.slots.find(pass.cursor);
  if (it == pass.slots.end()) {
    warn_if_held(pass, split, pool);
    return;
  }
  const Slot& slot = pool.slots[static_cast<size_t>(it->second)];
  if (slot.state != Slot::State::ready) return;
  pass.failed = trouble_with(pass, split, slot);
  if (!pass.failed) pass.failed = dump(pass, split, pool, it->second);
  if (pass.failed) {
    answer(pass, *pass.failed);
  } else {
    deliver(pass, split, pool, it->second);
  }
}

void Passes::answer(Pass& pass, const ClientMessage& message) {
  pass.waiting = false;
  messenger_.to_client(pass.connection, message);
}

// Nothing is reserved for the step that the client waits for: is it because the program lets go of nothing?
void Passes::warn_if_held(Pass& pass, const PortSplit& split, const SlotPool& pool) {
  if (pass.warned || pool.count(Slot::State::held) != std::ssize(pool.slots)) return;
  pass.warned = true;
  const std::string notice =
      "the program holds all " + std::to_string(pool.slots.size()) + " batches of split '" + split.resolved.name +
      "'; next() waits until one is dropped (trainer.hold: " + std::to_string(options_.hold) + ")";
  messenger_.to_client(pass.connection, ClientNotice{notice, pass.id});
  messenger_.notice(notice);
}

// Why a batch that is ready cannot be delivered: asked once for each batch, as its unusable samples are counted.
std::optional<ClientFailed> Passes::trouble_with(Pass& pass, const PortSplit& split, const Slot& slot) const {
  std::string problem = slot.problem;
  std::string remedy = slot.remedy;
  if (problem.empty()) {
    problem = over_budget(pass, split, slot);
    if (problem.empty()) return std::nullopt;
    remedy = "repair or remove the files, or raise bad_samples.max_fraction or bad_samples.max_count";
  } else if (remedy.empty()) {
    remedy = split.resolved.on_error == OnError::substitute
                 ? "repair or remove the files: nothing usable was found to stand in"
                 : "repair or remove the file, or set on_error: substitute";
  }
  return ClientFailed{static_cast<int32_t>(ErrorKind::dataset), problem, remedy, pass.id};
}

std::string Passes::over_budget(Pass& pass, const PortSplit& split, const Slot& slot) const {
  std::string last;
  for (const SampleRecord& record : slot.records) {
    if (record.reason.empty() || record.padding) continue;
    ++pass.substituted;
    last = "'" + record.key + "': " + record.reason;
  }
  const int64_t budget = bad_sample_budget(split.resolved.bad_samples, pass.plan);
  if (pass.substituted <= budget) return {};
  return "more than " + std::to_string(budget) + " samples of split '" + split.resolved.name +
         "' are unusable in epoch " + std::to_string(pass.epoch) + "; the last: " + last;
}

// A program may take an epoch several times (an evaluation after each of training): the same batches, whose lines would
// stand in the manifest as often. Where it gives the order itself, each pass is another. A batch that cannot be dumped
// is not delivered, and not counted.
std::optional<ClientFailed> Passes::dump(const Pass& pass, const PortSplit& split, SlotPool& pool, int32_t index) {
  if (!dumps(options_)) return std::nullopt;
  const bool may_come_again = !split.resolved.split.sampler.program;
  const std::tuple batch{split.fingerprint, pass.epoch, pool.slots[static_cast<size_t>(index)].step};
  if (may_come_again && dumped_.count(batch) != 0) return std::nullopt;
  try {
    dump_slot(options_, pass.epoch, split, pool, index);
  } catch (const Error& error) {
    return ClientFailed{error.exit_code(), error.message(), error.remedy(), pass.id};
  }
  if (may_come_again) dumped_.insert(batch);
  return std::nullopt;
}

void Passes::deliver(Pass& pass, const PortSplit& split, SlotPool& pool, int32_t index) {
  Slot& slot = pool.slots[static_cast<size_t>(index)];
  const Nanoseconds now = clock_.now();
  const Delivery delivery{arithmetic_of(split.resolved.arithmetic), pass.epoch, slot.samples, now - pass.asked_at,
                          now - std::max(pass.first_asked, pass.last_answered)};
  record_.delivered(pass.connection, split.resolved.name, slot.step, pass.plan.steps, delivery, slot.hash, slot.records);
  pass.last_answered = now;
  pass.hash += slot.hash;
  slot.state = Slot::State::held;
  pass.slots.erase(slot.step);
  pass.warned = false;
  ++pass.cursor;
  ClientBatch batch{pass.id, pool.id, index, pass.epoch, slot.step, slot.samples, slot.num_valid, {}};
  batch.pieces = slot.on_cards;
  for (const ClientPiece& images : slot.on_cards) record_.on_cards(images.samples);
  answer(pass, batch);
  messenger_.to_coordinator(CursorAt{pass.lease_stream, pass.cursor, false});
  reserve(pass);
}

void Passes::release(int connection, const ClientRelease& message) {
  const auto it = pools_.find(message.pool);
  if (it == pools_.end() || message.slot < 0 || message.slot >= std::ssize(it->second.slots)) return;
  if (splits_.at(it->second.split_id).connection != connection) return;
  Slot& slot = it->second.slots[static_cast<size_t>(message.slot)];
  if (slot.state != Slot::State::held) return;  // released twice: the first one counted
  free(slot);
  if (const auto pass = passes_.find(it->second.stream); pass != passes_.end()) {
    reserve(pass->second);
    serve(pass->second);
  }
}

void Passes::stop(int connection, const ClientStop& message) {
  if (find(connection, message.stream) != nullptr) end(message.stream);
}

void Passes::end(StreamId id) {
  const auto it = passes_.find(id);
  if (it == passes_.end()) return;
  Pass& pass = it->second;
  record_.range_ended(pass.connection, split_name(pass), pass.range());
  close_stream(pass);
  if (const auto pool = pools_.find(pass.pool); pool != pools_.end()) pool->second.stream = 0;
  passes_.erase(it);
}

void Passes::free(Slot& slot) const {
  for (const SlotPiece& piece : slot.pieces) shares_.give_back(piece.loader, piece.piece, piece.share);
  slot.pieces.clear();
  slot.on_cards.clear();
  slot.state = Slot::State::free;
}

void Passes::stop_all_of(int connection) {
  std::vector<StreamId> ids;
  for (const auto& [id, pass] : passes_) {
    if (pass.connection == connection) ids.push_back(id);
  }
  for (const StreamId id : ids) end(id);
}

void Passes::split_closed(int32_t split) {
  // The program's mappings of the pools stay valid without us: memory lives as long as anybody maps it. Pieces of what
  // it held are not ours to give back while it lives.
  for (auto& [id, pool] : pools_) {
    if (pool.split_id != split) continue;
    for (Slot& slot : pool.slots) {
      if (slot.state == Slot::State::held) {
        for (const SlotPiece& piece : slot.pieces) {
          shares_.read_till_end(splits_.at(split).connection, piece.loader, piece.piece, piece.share);
        }
        slot.pieces.clear();
      }
      free(slot);
    }
  }
  std::erase_if(pools_, [&](const auto& item) { return item.second.split_id == split; });
}

std::vector<std::pair<std::string, DeliveredRange>> Passes::open_ranges(std::optional<int> connection) const {
  std::vector<std::pair<std::string, DeliveredRange>> open;
  for (const auto& [id, pass] : passes_) {
    if (!connection || pass.connection == *connection) open.emplace_back(split_name(pass), pass.range());
  }
  return open;
}

}  // namespace penstock
