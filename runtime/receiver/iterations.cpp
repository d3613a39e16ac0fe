#include "runtime/receiver/iterations.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/coordinator/epoch_plan.h"
#include "runtime/receiver/batch_buffer_dump.h"
#include "runtime/receiver/chunk_intake.h"
#include "runtime/transforms/transforms.h"

namespace penstock {
namespace {

// What the message speaks of: a function of the pipeline (it begins with its name), the program's data set, or files.
std::string mend(const SplitSpec& split, const std::string& problem) {
  for (const auto* list : {&split.pipeline, &split.gpu_pipeline}) {
    for (const TransformSpec& step : *list) {
      if (step.name != "Python") continue;
      const std::string function = "'" + text_param(step.params, "function") + "'";
      if (problem.find(": " + function + ": ") != std::string::npos) return "mend the function for such pictures";
    }
  }
  return split.dataset.is_python() ? "mend the program's data set for such samples"
                                   : "repair or remove the files (`penstock check --decode JOB.yaml` names them all)";
}

}  // namespace

void Iterations::begin(int connection, const ClientIterate& message) {
  const ReceiverSplit* split = splits_.find_opened(message.split_id);
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
  BatchBufferPool& pool = pool_for(*split);
  Iteration iteration;
  iteration.id = next_lease_stream();
  iteration.connection = connection;
  iteration.split_id = split->id;
  iteration.pool = pool.id;
  iteration.epoch = message.epoch;
  iteration.plan = plan;
  iteration.first_step = iteration.cursor = iteration.next_reserve = message.first_step;
  pool.iteration = iteration.id;
  const bool with_memory = !pool.shown;
  pool.shown = true;
  messenger_.to_client(connection,
                       ClientIteration{iteration.id, pool.id, static_cast<int32_t>(pool.batch_buffers.size()),
                                       pool.layout.total_bytes, with_memory},
                       with_memory ? pool.memory.fd() : -1);
  const bool on_gpus = split->gpu_images && !dumps(options_);
  if (on_gpus) exports_.read_by(connection, split->process);
  iteration.gpu_reader = on_gpus ? connection : 0;
  if (on_gpus) iteration.order = message.order;
  const LeaseStreamId id = iteration.id;
  open_lease_stream(iterations_[id] = std::move(iteration), message.order);
}

// Unique in the job: the receiver's number above a counter.
LeaseStreamId Iterations::next_lease_stream() {
  return (uint64_t{static_cast<uint32_t>(options_.self)} + 1) << 32 | next_lease_stream_++;
}

void Iterations::open_lease_stream(Iteration& iteration, const std::vector<int64_t>& order) {
  const bool again = iteration.lease_stream != 0;
  iteration.lease_stream = again ? next_lease_stream() : iteration.id;
  by_lease_stream_[iteration.lease_stream] = iteration.id;
  iteration.next_reserve = iteration.cursor;
  iteration.chunk_samples = 0;
  const ReceiverSplit& split = splits_.at(iteration.split_id);
  messenger_.to_coordinator(OpenLeaseStream{iteration.lease_stream, split.fingerprint, options_.replica,
                                            iteration.epoch, iteration.cursor, order, split.program, split.opening,
                                            iteration.gpu_reader, again});
}

void Iterations::close_lease_stream(Iteration& iteration) {
  if (const auto pool = pools_.find(iteration.pool); pool != pools_.end()) {
    for (const auto& [step, batch_buffer] : iteration.batch_buffers)
      free(pool->second.batch_buffers[static_cast<size_t>(batch_buffer)]);
  }
  iteration.batch_buffers.clear();
  by_lease_stream_.erase(iteration.lease_stream);
  messenger_.to_coordinator(CloseLeaseStream{iteration.lease_stream});
}

void Iterations::make_again(Iteration& iteration) {
  if (iteration.failed) return;
  close_lease_stream(iteration);
  open_lease_stream(iteration, iteration.order);
  if (iteration.waiting) messenger_.to_coordinator(CursorAt{iteration.lease_stream, iteration.cursor, true});
}

void Iterations::loader_lost(PeerId loader) {
  for (auto& [id, iteration] : iterations_) {
    const BatchBufferPool& pool = pools_.at(iteration.pool);
    const bool lost =
        std::any_of(iteration.batch_buffers.begin(), iteration.batch_buffers.end(), [&](const auto& item) {
          const auto& buffer_ranges = pool.batch_buffers[static_cast<size_t>(item.second)].buffer_ranges;
          return std::any_of(buffer_ranges.begin(), buffer_ranges.end(), [&](const HeldBufferRange& buffer_range) {
            return buffer_range.loader == loader && !exports_.readable(buffer_range.exported);
          });
        });
    if (lost) make_again(iteration);
  }
}

Iterations::Iteration* Iterations::find(int connection, LeaseStreamId id) {
  const auto it = iterations_.find(id);
  return it == iterations_.end() || it->second.connection != connection ? nullptr : &it->second;
}

Iterations::Iteration* Iterations::of_lease_stream(LeaseStreamId lease_stream) {
  const auto it = by_lease_stream_.find(lease_stream);
  return it == by_lease_stream_.end() ? nullptr : &iterations_.at(it->second);
}

BatchBufferPool& Iterations::pool_for(const ReceiverSplit& split) {
  for (auto& [id, pool] : pools_) {
    if (pool.split_id == split.id && pool.iteration == 0) return pool;
  }
  BatchBufferPool pool;
  pool.id = next_pool_++;
  pool.split_id = split.id;
  pool.layout = batch_buffer_layout(split.fields, split.shape.batch_size);
  // One in use, `prefetch` ahead (two at least), and what the program may keep besides.
  pool.batch_buffers.resize(static_cast<size_t>(std::max(2, options_.prefetch) + 1 + options_.hold));
  const std::string& name = split.resolved.name;
  try {
    pool.memory = SharedMemory::create("penstock-batch-buffers", pool.layout.total_bytes * pool.batch_buffers.size(),
                                       [this] { messenger_.still_alive(); });
  } catch (const Error& error) {
    throw Error(error.kind(),
                error.message() + ", for " + std::to_string(pool.batch_buffers.size()) + " batches of " +
                    std::to_string(split.shape.batch_size) + " samples of split '" + name + "'",
                "lower splits." + name + ".batch_size, loader.prefetch or trainer.hold");
  }
  return pools_.emplace(pool.id, std::move(pool)).first->second;
}

void Iterations::ready(const LeaseStreamReady& message) {
  Iteration* const iteration = of_lease_stream(message.lease_stream);
  if (iteration == nullptr) return;
  iteration->chunk_samples = message.chunk_samples;
  iteration->by_holder = message.by_holder;
  reserve(*iteration);
}

void Iterations::failed(const LeaseStreamFailed& message) {
  Iteration* const iteration = of_lease_stream(message.lease_stream);
  if (iteration == nullptr) return;
  iteration->failed = ClientFailed{message.error_kind, message.error, message.remedy, iteration->id};
  serve(*iteration);
}

// Takes batch buffers for the next steps, as far ahead as prefetch allows.
void Iterations::reserve(Iteration& iteration) {
  if (iteration.chunk_samples == 0 || iteration.failed) return;
  const ReceiverSplit& split = splits_.at(iteration.split_id);
  BatchBufferPool& pool = pools_.at(iteration.pool);
  // The step being waited for comes on top of `prefetch` ones.
  const int64_t ahead = iteration.cursor + std::max(1, options_.prefetch) + (iteration.waiting ? 1 : 0);
  while (iteration.next_reserve < iteration.plan.steps && iteration.next_reserve < ahead) {
    const int32_t index = pool.find_free();
    if (index < 0) break;
    BatchBuffer& batch_buffer = pool.batch_buffers[static_cast<size_t>(index)];
    const int64_t samples = std::min(
        split.shape.batch_size, iteration.plan.samples_per_replica - iteration.next_reserve * split.shape.batch_size);
    begin_batch_buffer(split, iteration.next_reserve, samples, iteration.chunk_samples, iteration.by_holder,
                       keeps_raw(options_), batch_buffer);
    iteration.batch_buffers[batch_buffer.step] = index;
    messenger_.to_coordinator(BatchBufferFree{iteration.lease_stream, iteration.next_reserve});
    ++iteration.next_reserve;
  }
}

bool Iterations::take(const ChunkHeader& header, std::vector<SampleRecord>& records, const ChunkArrived& arrived) {
  std::optional<int32_t> exported;
  const bool taken = put(header, records, arrived, exported);
  if (header.buffer_range && !exported) exports_.give_back(arrived.peer, *header.buffer_range, {});
  return taken;
}

// `exported`: where its images stay on their GPU.
bool Iterations::put(const ChunkHeader& header, std::vector<SampleRecord>& records, const ChunkArrived& arrived,
                     std::optional<int32_t>& exported) {
  Iteration* const found = of_lease_stream(header.lease.lease_stream);
  if (found == nullptr) return false;
  Iteration& iteration = *found;
  const ReceiverSplit& split = splits_.at(iteration.split_id);
  const auto place = iteration.batch_buffers.find(header.lease.step);
  if (place == iteration.batch_buffers.end()) return false;
  BatchBufferPool& pool = pools_.at(iteration.pool);
  const BatchBuffer& batch_buffer = pool.batch_buffers[static_cast<size_t>(place->second)];
  if (!wanted(batch_buffer, header)) return false;
  const bool on_gpus = header.buffer_range && split.gpu_images && !dumps(options_);
  const bool nowhere_else =
      std::any_of(records.begin(), records.end(), [](const SampleRecord& one) { return one.pixel_hash.has_value(); });
  if (nowhere_else && !on_gpus) {
    throw Error(ErrorKind::peer_lost,
                "rank " + std::to_string(arrived.peer) + " left images on its GPU" +
                    (header.buffer_range ? ", which nobody asked for" : ", and says not where"),
                "all ranks must run the same version of penstock");
  }
  const std::optional<int32_t> known =
      on_gpus ? exports_.keep(iteration.connection, arrived.peer, *header.buffer_range, nowhere_else) : std::nullopt;
  if (nowhere_else && !known) {
    // If the loader was lost, another one makes the chunk again. If it lives, its link has ended meanwhile.
    if (exports_.link_ended(arrived.peer, *header.buffer_range)) make_again(iteration);
    return false;
  }
  try {
    ChunkHashes hashes =
        take_chunk(split, expected(iteration, arrived), pool, place->second, header, records, arrived.payload, known);
    if (header.compared) {
      iteration.to_compare[{header.lease.step, header.lease.chunk}] = {arrived.peer, std::move(hashes)};
    }
  } catch (const Error&) {
    if (header.buffer_range) exports_.give_back(arrived.peer, *header.buffer_range, known);
    throw;
  }
  exported = known;
  return true;
}

ChunkExpectation Iterations::expected(const Iteration& iteration, const ChunkArrived& arrived) const {
  return {arrived.peer,     iteration.epoch,     iteration.chunk_samples,
          options_.replica, iteration.by_holder, options_.num_replicas};
}

std::string Iterations::compare(const ChunkHeader& header, const std::vector<SampleRecord>& records,
                                const ChunkArrived& arrived) {
  if (header.buffer_range) exports_.give_back(arrived.peer, *header.buffer_range, {});
  Iteration* const iteration = of_lease_stream(header.lease.lease_stream);
  if (iteration == nullptr) return {};
  const auto first = iteration->to_compare.extract({header.lease.step, header.lease.chunk});
  if (first.empty() || first.mapped().sender == arrived.peer) return {};
  const ReceiverSplit& split = splits_.at(iteration->split_id);
  const ChunkHashes hashes = hash_chunk(split, expected(*iteration, arrived), header, records, arrived.payload);
  const auto [mine, other] =
      std::mismatch(first.mapped().hashes.begin(), first.mapped().hashes.end(), hashes.begin(), hashes.end());
  if (mine == first.mapped().hashes.end() && other == hashes.end()) {
    statistics_.compared();
    return {};
  }
  std::string what = "a chunk";
  if (other != hashes.end()) {
    const SampleRecord& record = records[static_cast<size_t>(other - hashes.begin())];
    what = "sample '" + record.key + "' (index " + std::to_string(record.planned.index) + ")";
  }
  return name_of_rank(options_, first.mapped().sender) + " and " + name_of_rank(options_, arrived.peer) + " made " +
         what + " of split '" + split.resolved.name + "', epoch " + std::to_string(iteration->epoch) + ", step " +
         std::to_string(header.lease.step) + ", differently: one of them computes wrongly";
}

void Iterations::next(int connection, const ClientNext& message) {
  Iteration* const found = find(connection, message.iteration);
  if (found == nullptr) {
    messenger_.to_client(connection, ClientFailed{static_cast<int32_t>(ErrorKind::usage), "this iteration has ended",
                                                  "start a new one with begin()", message.iteration});
    return;
  }
  Iteration& iteration = *found;
  iteration.waiting = true;
  iteration.came_late = false;
  iteration.asked_at = clock_.now();
  if (iteration.first_asked == 0) iteration.first_asked = iteration.asked_at;
  reserve(iteration);
  messenger_.to_coordinator(CursorAt{iteration.lease_stream, iteration.cursor, true});
  serve(iteration);
}

void Iterations::serve(LeaseStreamId lease_stream) {
  if (Iteration* const iteration = of_lease_stream(lease_stream)) serve(*iteration);
}

void Iterations::serve(Iteration& iteration) {
  if (!iteration.waiting) return;
  if (iteration.failed) {
    answer(iteration, *iteration.failed);
    return;
  }
  if (iteration.cursor >= iteration.plan.steps) {
    answer(iteration, ClientEnd{iteration.id});
    return;
  }
  const ReceiverSplit& split = splits_.at(iteration.split_id);
  BatchBufferPool& pool = pools_.at(iteration.pool);
  const auto it = iteration.batch_buffers.find(iteration.cursor);
  if (it == iteration.batch_buffers.end()) {
    warn_if_held(iteration, split, pool);
    return;
  }
  const BatchBuffer& batch_buffer = pool.batch_buffers[static_cast<size_t>(it->second)];
  if (batch_buffer.state != BatchBuffer::State::ready) return;
  iteration.failed = trouble_with(iteration, split, batch_buffer);
  if (!iteration.failed) iteration.failed = dump(iteration, split, pool, it->second);
  if (iteration.failed) {
    answer(iteration, *iteration.failed);
  } else {
    deliver(iteration, split, pool, it->second);
  }
}

void Iterations::answer(Iteration& iteration, const ClientMessage& message) {
  iteration.waiting = false;
  iteration.came_late = has_waited(iteration, 1);
  messenger_.to_client(iteration.connection, message);
}

// Called where nothing is reserved for the step that the client waits for. Warns once, if the program holds all
// batches.
void Iterations::warn_if_held(Iteration& iteration, const ReceiverSplit& split, const BatchBufferPool& pool) {
  if (iteration.warned || pool.count(BatchBuffer::State::held) != std::ssize(pool.batch_buffers)) return;
  iteration.warned = true;
  const std::string notice = "the program holds all " + std::to_string(pool.batch_buffers.size()) +
                             " batches of split '" + split.resolved.name +
                             "'; next() waits until one is dropped (trainer.hold: " + std::to_string(options_.hold) +
                             ")";
  messenger_.to_client(iteration.connection, ClientNotice{notice, iteration.id});
  messenger_.notice(notice);
}

// Why a batch that is ready cannot be delivered: asked once for each batch, as its unusable samples are counted.
std::optional<ClientFailed> Iterations::trouble_with(Iteration& iteration, const ReceiverSplit& split,
                                                     const BatchBuffer& batch_buffer) const {
  std::string problem = batch_buffer.problem;
  std::string remedy = batch_buffer.remedy;
  const SplitSpec& spec = split.resolved.split;
  if (problem.empty()) {
    problem = over_budget(iteration, split, batch_buffer);
    if (problem.empty()) return std::nullopt;
    remedy = mend(spec, problem) + ", or raise bad_samples.max_fraction or bad_samples.max_count";
  } else if (remedy.empty()) {
    remedy =
        mend(spec, problem) + (split.resolved.on_error == OnError::substitute ? ": nothing usable was found to stand in"
                                                                              : ", or set on_error: substitute");
  }
  return ClientFailed{static_cast<int32_t>(ErrorKind::dataset), problem, remedy, iteration.id};
}

std::string Iterations::over_budget(Iteration& iteration, const ReceiverSplit& split,
                                    const BatchBuffer& batch_buffer) const {
  std::string last;
  for (const SampleRecord& record : batch_buffer.records) {
    if (record.reason.empty() || record.padding) continue;
    ++iteration.substituted;
    last = "'" + record.key + "': " + record.reason;
  }
  const int64_t budget = bad_sample_budget(split.resolved.bad_samples, iteration.plan);
  if (iteration.substituted <= budget) return {};
  return "more than " + std::to_string(budget) + " samples of split '" + split.resolved.name +
         "' are unusable in epoch " + std::to_string(iteration.epoch) + "; the last: " + last;
}

// A program may go through one epoch several times (a validation set after each epoch of training). Its batches are the
// same each time and are dumped once, so that the manifest has their lines once. Where the program gives the order,
// each iteration is different. A batch that cannot be dumped is neither delivered nor counted.
std::optional<ClientFailed> Iterations::dump(const Iteration& iteration, const ReceiverSplit& split,
                                             BatchBufferPool& pool, int32_t index) {
  if (!dumps(options_)) return std::nullopt;
  const bool may_come_again = !split.resolved.split.sampler.program;
  const std::tuple batch{split.fingerprint, iteration.epoch, pool.batch_buffers[static_cast<size_t>(index)].step};
  if (may_come_again && dumped_.count(batch) != 0) return std::nullopt;
  try {
    dump_batch_buffer(options_, iteration.epoch, split, pool, index);
  } catch (const Error& error) {
    return ClientFailed{error.exit_code(), error.message(), error.remedy(), iteration.id};
  }
  if (may_come_again) dumped_.insert(batch);
  return std::nullopt;
}

void Iterations::deliver(Iteration& iteration, const ReceiverSplit& split, BatchBufferPool& pool, int32_t index) {
  BatchBuffer& batch_buffer = pool.batch_buffers[static_cast<size_t>(index)];
  const Nanoseconds now = clock_.now();
  // A program's order is of its replica alone.
  const int64_t epoch_samples = split.resolved.split.sampler.program
                                    ? iteration.plan.samples_per_replica * split.shape.num_replicas
                                    : split.shape.dataset_size;
  const Delivery delivery{arithmetic_of(split.resolved.arithmetic),
                          split.resolved.split.mode,
                          iteration.epoch,
                          iteration.plan.steps,
                          epoch_samples,
                          batch_buffer.samples,
                          now - iteration.asked_at,
                          now - std::max(iteration.first_asked, iteration.last_answered)};
  statistics_.delivered(iteration.connection, split.resolved.name, batch_buffer.step, iteration.plan.steps, delivery,
                        batch_buffer.hash, batch_buffer.records);
  iteration.last_answered = now;
  iteration.hash += batch_buffer.hash;
  batch_buffer.state = BatchBuffer::State::held;
  iteration.batch_buffers.erase(batch_buffer.step);
  iteration.warned = false;
  ++iteration.cursor;
  ClientBatch batch{iteration.id,           pool.id, index, iteration.epoch, batch_buffer.step, batch_buffer.samples,
                    batch_buffer.num_valid, {}};
  batch.buffer_ranges = batch_buffer.on_gpus;
  for (const ClientBufferRange& images : batch_buffer.on_gpus) statistics_.on_gpus(images.samples);
  answer(iteration, batch);
  messenger_.to_coordinator(CursorAt{iteration.lease_stream, iteration.cursor, false});
  reserve(iteration);
}

void Iterations::release(int connection, const ClientRelease& message) {
  const auto it = pools_.find(message.pool);
  if (it == pools_.end() || message.batch_buffer < 0 || message.batch_buffer >= std::ssize(it->second.batch_buffers))
    return;
  if (splits_.at(it->second.split_id).connection != connection) return;
  BatchBuffer& batch_buffer = it->second.batch_buffers[static_cast<size_t>(message.batch_buffer)];
  if (batch_buffer.state != BatchBuffer::State::held) return;  // released twice: the first one counted
  free(batch_buffer);
  if (const auto iteration = iterations_.find(it->second.iteration); iteration != iterations_.end()) {
    reserve(iteration->second);
    serve(iteration->second);
  }
}

void Iterations::stop(int connection, const ClientStop& message) {
  if (find(connection, message.iteration) != nullptr) end(message.iteration);
}

void Iterations::end(LeaseStreamId id) {
  const auto it = iterations_.find(id);
  if (it == iterations_.end()) return;
  Iteration& iteration = it->second;
  statistics_.range_ended(iteration.connection, split_name(iteration), iteration.range());
  close_lease_stream(iteration);
  if (const auto pool = pools_.find(iteration.pool); pool != pools_.end()) pool->second.iteration = 0;
  iterations_.erase(it);
}

void Iterations::free(BatchBuffer& batch_buffer) const {
  for (const HeldBufferRange& buffer_range : batch_buffer.buffer_ranges)
    exports_.give_back(buffer_range.loader, buffer_range.buffer_range, buffer_range.exported);
  batch_buffer.buffer_ranges.clear();
  batch_buffer.on_gpus.clear();
  batch_buffer.state = BatchBuffer::State::free;
}

void Iterations::stop_all_of(int connection) {
  std::vector<LeaseStreamId> ids;
  for (const auto& [id, iteration] : iterations_) {
    if (iteration.connection == connection) ids.push_back(id);
  }
  for (const LeaseStreamId id : ids) end(id);
}

// Whether the client that asked has waited for this share of its time. One that holds all batches waits for itself.
bool Iterations::has_waited(const Iteration& iteration, double share) const {
  const Nanoseconds limit = splits_.at(iteration.split_id).longest_wait_ns;
  return !iteration.warned && limit > 0 && as_seconds(clock_.now() - iteration.asked_at) >= share * as_seconds(limit);
}

std::string Iterations::waited_in_vain(int connection, LeaseStreamId only) const {
  for (const auto& [id, iteration] : iterations_) {
    if (iteration.connection != connection || (only != 0 && id != only)) continue;
    // Its time has begun before the question came.
    if (!iteration.came_late && !(iteration.waiting && has_waited(iteration, 0.9))) continue;
    const ReceiverSplit& split = splits_.at(iteration.split_id);
    return "no batch of split '" + split.resolved.name + "' came within " + in_seconds(split.longest_wait_ns) +
           " (trainer.timeout_s, or its program's timeout)";
  }
  return {};
}

void Iterations::split_closed(int32_t split) {
  // The program's mappings of the pools stay valid without us: memory lives as long as anybody maps it. Buffer ranges
  // of what it held are not ours to give back while it lives.
  for (auto& [id, pool] : pools_) {
    if (pool.split_id != split) continue;
    for (BatchBuffer& batch_buffer : pool.batch_buffers) {
      if (batch_buffer.state == BatchBuffer::State::held) {
        for (const HeldBufferRange& buffer_range : batch_buffer.buffer_ranges) {
          exports_.read_till_end(splits_.at(split).connection, buffer_range.loader, buffer_range.buffer_range,
                                 buffer_range.exported);
        }
        batch_buffer.buffer_ranges.clear();
      }
      free(batch_buffer);
    }
  }
  std::erase_if(pools_, [&](const auto& item) { return item.second.split_id == split; });
}

std::vector<std::pair<std::string, DeliveredRange>> Iterations::open_ranges(std::optional<int> connection) const {
  std::vector<std::pair<std::string, DeliveredRange>> open;
  for (const auto& [id, iteration] : iterations_) {
    if (!connection || iteration.connection == *connection) open.emplace_back(split_name(iteration), iteration.range());
  }
  return open;
}

}  // namespace penstock
