// The parts behind the public header: receiver_connection.h finds the receiver (attach.h, embedded_place.h);
// client_session.h talks to it (iteration_answers.h, question_queue.h, outbox.h, returned_batches.h, wait_deadline.h);
// batch_state.h is what is behind a Batch; client_state.h and state_file.h are checkpoints; gpu_images.h is for images that
// stay on a loader's GPU.
#include "runtime/client/data_loader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/json_text.h"
#include "runtime/base/memory.h"
#include "runtime/client/batch_state.h"
#include "runtime/client/client_session.h"
#include "runtime/client/client_state.h"
#include "runtime/client/gpu_images.h"
#include "runtime/client/receiver_connection.h"
#include "runtime/job/gpu_keys.h"
#include "runtime/job/job.h"
#include "runtime/job/sampler_file.h"
#include "runtime/pixels/finish.h"
#include "runtime/report/report.h"
#include "runtime/sample/split_fields.h"

namespace penstock {

// One split at one receiver: what the DataLoader, its iterations and their batches share. It connects to the receiver
// once (receiver_connection.h); then the session talks to it (client_session.h) and lends the batches (batch_state.h).
class DataLoaderImpl : public std::enable_shared_from_this<DataLoaderImpl> {
 public:
  DataLoaderImpl(const JobMaker& read, const std::string& split, const DataLoaderOptions& options)
      : connection_(connect_receiver(read, options)),
        resolved_(with_sampler_file(resolve_split(connection_.job, split))) {
    if (connection_.origin == ReceiverOrigin::embedded) load_here(connection_, options);
    asked_.longest_wait_ns = batch_timeout_ns(options);
    session_.emplace(std::move(connection_.socket), session_options(options));
    if (connection_.origin == ReceiverOrigin::embedded) {
      if (const std::string text = unused_server(connection_.job, options); !text.empty()) session_->warn(text);
      if (const std::string text = gpu_keys_without_effect(connection_.job); !text.empty()) session_->warn(text);
    }
    open(options);
    form_ = std::make_shared<const BatchForm>(batch_form(resolved_, opened()));
    // Pictures alone are what nobody trains a classifier with; where other fields come along, that is what was wanted.
    if (!opened().labelled && training() && opened().fields.size() == 2) {
      session_->warn(form_->no_labels + "; its batches are pictures alone");
    }
  }

  static const std::shared_ptr<DataLoaderImpl>& of(const DataLoader& loader) { return loader.impl_; }

  ClientSession& session() { return *session_; }
  const ClientOpened& opened() const { return session_->opened(); }
  const ResolvedSplit& resolved() const { return resolved_; }
  PlanSpec plan(int64_t order_samples = 0) const {
    const bool program = resolved_.split.sampler.program;
    PlanSpec spec = plan_spec(resolved_, program ? order_samples * opened().num_replicas : opened().dataset_size,
                              opened().num_replicas);
    if (program) spec.batch_drop_last = resolved_.split.drop_last;
    return spec;
  }
  const std::vector<std::string>& field_names() const { return form_->shown; }
  const BatchForm& form() const { return *form_; }
  Finisher finisher() const {
    const Variants variants = make_variants(resolved_);
    return finisher_of(variants.shared(),
                       wanted_finish(variants.shared().finish(), resolved_.split.channels_last, asked_));
  }
  int ranks_per_replica() const { return connection_.job.roles.ranks_per_replica; }
  bool embedded() const { return connection_.origin == ReceiverOrigin::embedded; }
  bool training() const { return resolved_.split.mode == Mode::train; }

  // An empty batch at the end.
  Batch next(uint64_t iteration) {
    std::optional<LentBatch> lent = session_->next(iteration);
    if (!lent) return {};
    // A batch that outlives the loader keeps its memory, and none of the loader's threads; but images in memory of
    // loaders' GPUs are there for as long as the loader is.
    const auto kept = lent->buffer_ranges.empty() ? nullptr : shared_from_this();
    return BatchState::batch_of(
        std::make_shared<BatchState>(form_, *lent, [kept, loader = weak_from_this(), info = lent->info] {
          if (const auto self = loader.lock()) self->session_->release(info);
        }));
  }

  std::string report() {
    std::vector<std::string> ranks{session_->stats()};
    if (embedded()) ranks.push_back(connection_.host->loader_report());
    return json_text_replacing(merge_reports(ranks));
  }

  int hold() const noexcept { return connection_.job.trainer.hold; }

  std::optional<int64_t> next_epoch;  // set by set_epoch, used up by begin()
  int64_t last_epoch = -1;            // of the last begin()

 private:
  ClientSession::Options session_options(const DataLoaderOptions& options) const {
    ClientSession::Options session;
    session.split = resolved_.name;
    session.hold = connection_.job.trainer.hold;
    session.server = server_name(connection_.origin);
    session.timeout_ns = asked_.longest_wait_ns;
    session.answer_timeout_ns = connection_.job.longest_wait_ns();
    if (embedded()) {  // which lists the data set, starts workers and gets memory for batches; none is a wait for a batch
      session.answer_timeout_ns =
          std::max(session.answer_timeout_ns, static_cast<Nanoseconds>(TrainerSpec{}.timeout_s * 1e9));
    }
    if (connection_.host) session.problem = [host = connection_.host.get()] { return host->problem(); };
    session.on_warning = options.on_warning;
    session.while_waiting = options.while_waiting;
    return session;
  }

  Nanoseconds batch_timeout_ns(const DataLoaderOptions& options) const {
    if (!(options.timeout_s >= 0 && options.timeout_s <= 1e9))
      throw Error(ErrorKind::usage, "timeout_s is " + std::to_string(options.timeout_s), "say 0 to 1e9 seconds");
    Job job = connection_.job;
    if (options.timeout_s > 0) job.trainer.timeout_s = options.timeout_s;
    return job.longest_wait_ns();
  }

  void open(const DataLoaderOptions& options) {
    asked_.json = canonical_json(resolved_);
    if (options.dtype) asked_.dtype = static_cast<int32_t>(*options.dtype);
    if (options.channels_last) asked_.channels_last = *options.channels_last ? 1 : 0;
    asked_.raw_images = options.raw_images;
    asked_.gpu_images = options.gpu_images;
    try {
      session_->open(asked_);
    } catch (const Error&) {
      throw;
    } catch (...) {  // interrupted by while_waiting
      if (connection_.host) ReceiverHost::let_go_elsewhere(std::move(connection_.host));
      throw;
    }
  }

  ReceiverConnection connection_;  // outlives the session, which asks the host why it ended
  ResolvedSplit resolved_;
  ClientOpen asked_;
  std::optional<ClientSession> session_;
  std::shared_ptr<const BatchForm> form_;
};

namespace {

std::shared_ptr<DataLoaderImpl> make_impl(const JobMaker& read, const std::string& split,
                                          const DataLoaderOptions& options) {
  if (!options.ending) return std::make_shared<DataLoaderImpl>(read, split, options);
  return {new DataLoaderImpl(read, split, options),
          [ending = options.ending](DataLoaderImpl* last) { ending([last] { delete last; }); }};
}

}  // namespace

ExportedGpuMemory::~ExportedGpuMemory() {
  UniqueFd(fd).reset();
}

struct BatchStream::Iteration {
  std::shared_ptr<DataLoaderImpl> loader;
  uint64_t number = 0;
  bool over = false;

  ~Iteration() {
    if (loader) loader->session().stop(number);
  }
};

Batch BatchStream::next() {
  if (!iteration_ || iteration_->over) return {};
  Batch batch = iteration_->loader->next(iteration_->number);
  iteration_->over = !batch;
  return batch;
}

struct BatchIterator::Place {
  BatchStream stream;
  Batch batch;  // goes before the stream does
};

bool BatchIterator::at_end() const noexcept {
  return !place_ || !place_->batch;
}
Batch& BatchIterator::operator*() const {
  if (at_end()) throw Error(ErrorKind::usage, "there is no batch at the end of an iteration");
  return place_->batch;
}
BatchIterator& BatchIterator::operator++() {
  if (!place_) return *this;
  place_->batch = {};
  place_->batch = place_->stream.next();
  return *this;
}

DataLoader::DataLoader(const std::string& job_file, const std::string& split, const DataLoaderOptions& options)
    : DataLoader(make_impl([&](const std::vector<std::string>& overrides) { return load_job(job_file, overrides); },
                           split, options)) {}
DataLoader::DataLoader(std::shared_ptr<DataLoaderImpl> impl) : impl_(std::move(impl)) {}
DataLoader DataLoader::from_text(const std::string& job_text, const std::string& name, const std::string& split,
                                 const DataLoaderOptions& options) {
  return DataLoader(
      make_impl([&](const std::vector<std::string>& overrides) { return load_job_text(job_text, name, overrides); },
                split, options));
}
DataLoader::~DataLoader() = default;
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;

BatchStream DataLoader::start() {
  return start_at(epoch(), 0);
}

BatchStream DataLoader::start_at(int64_t which, int64_t step) {
  return start_at(which, step, {});
}

BatchStream DataLoader::start_at(int64_t which, int64_t step, std::vector<int64_t> order) {
  BatchStream stream;
  stream.iteration_ = std::make_shared<BatchStream::Iteration>();
  stream.iteration_->number = impl_->session().begin(which, step, std::move(order));
  stream.iteration_->loader = impl_;
  impl_->last_epoch = which;  // an interrupted begin() was none
  impl_->next_epoch.reset();
  return stream;
}

BatchIterator DataLoader::begin() {
  return begin_at(epoch(), 0);
}

BatchIterator DataLoader::begin_at(int64_t which, int64_t step) {
  BatchIterator iterator;
  iterator.place_ = std::make_shared<BatchIterator::Place>();
  iterator.place_->stream = start_at(which, step);
  iterator.place_->batch = iterator.place_->stream.next();
  return iterator;
}

std::string DataLoader::state(int64_t epoch, int64_t step, int64_t order_samples) const {
  return state_text(impl_->resolved(), impl_->plan(order_samples), impl_->opened().dataset_fingerprint, {epoch, step});
}
Cursor DataLoader::resume(const std::string& state, int64_t order_samples) const {
  std::string warning;
  const Cursor cursor =
      resume_state(state, impl_->resolved(), impl_->plan(order_samples), impl_->opened().dataset_fingerprint, warning);
  if (!warning.empty()) impl_->session().warn(warning);
  return cursor;
}
std::string DataLoader::spec() const {
  return canonical_json(impl_->resolved());
}

void DataLoader::set_epoch(int64_t epoch) {
  if (epoch < 0) throw Error(ErrorKind::usage, "set_epoch(" + std::to_string(epoch) + "): epochs count from 0");
  impl_->next_epoch = epoch;
}
int64_t DataLoader::epoch() const noexcept {
  if (impl_->next_epoch) return *impl_->next_epoch;
  return impl_->training() ? impl_->last_epoch + 1 : 0;
}
int64_t DataLoader::size() const noexcept {
  return impl_->opened().steps;
}
int64_t DataLoader::batch_size() const noexcept {
  return impl_->opened().batch_size;
}
int DataLoader::hold() const noexcept {
  return impl_->hold();
}
int64_t DataLoader::num_samples() const noexcept {
  return impl_->opened().num_samples;
}
int64_t DataLoader::dataset_size() const noexcept {
  return impl_->opened().dataset_size;
}
int DataLoader::num_replicas() const noexcept {
  return impl_->opened().num_replicas;
}
int DataLoader::ranks_per_replica() const noexcept {
  return impl_->ranks_per_replica();
}
int DataLoader::rank() const noexcept {
  return impl_->opened().replica;
}
const std::vector<std::string>& DataLoader::class_names() const noexcept {
  return impl_->opened().classes;
}
std::vector<std::string> DataLoader::warnings() const {
  return impl_->session().take_warnings();
}
std::string DataLoader::stats_json() {
  return impl_->session().stats();
}
std::string DataLoader::report_json() {
  return impl_->report();
}
std::vector<std::string> DataLoader::fields() const {
  return impl_->field_names();
}
FieldKind DataLoader::kind(const std::string& field) const {
  return kind_of(impl_->form(), field);
}
bool DataLoader::embedded() const noexcept {
  return impl_->embedded();
}
bool DataLoader::raw_images() const noexcept {
  return impl_->opened().raw_images;
}
Finisher DataLoader::finisher() const {
  return impl_->finisher();
}
void DataLoader::end_waits() noexcept {
  impl_->session().end_waits();
}

OfferedGpuMemory::OfferedGpuMemory(const DataLoader& loader) : loader_(DataLoaderImpl::of(loader)) {}
std::vector<std::shared_ptr<const ExportedGpuMemory>> OfferedGpuMemory::take() {
  return loader_->session().take_offers();
}
void OfferedGpuMemory::use(const ExportedGpuMemory& memory) {
  loader_->session().use(memory);
}
void OfferedGpuMemory::use_none() {
  loader_->session().use_none();
}
void OfferedGpuMemory::ask_for_link(const ExportedGpuMemory& memory, const std::string& identity) {
  loader_->session().ask_for_link(memory, identity);
}
void OfferedGpuMemory::ask_for_images(const ExportedGpuMemory& memory, std::vector<MemoryRange> runs) {
  loader_->session().ask_for_images(memory, std::move(runs));
}

}  // namespace penstock
