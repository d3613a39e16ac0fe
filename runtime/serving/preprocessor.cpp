#include "runtime/serving/preprocessor.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <set>
#include <stop_token>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/signals_blocked.h"
#include "runtime/base/switches.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/job/gpu_keys.h"
#include "runtime/job/job.h"
#include "runtime/loader/executor.h"
#include "runtime/loader/loader.h"
#include "runtime/pixels/finish.h"
#include "runtime/sample/pipeline_identity.h"
#include "runtime/sample/sample_maker.h"
#include "runtime/sample/split_context.h"

namespace penstock {
namespace {

constexpr int kMostThreads = 1024;  // as of loader.threads
constexpr std::chrono::milliseconds kAskCallerEvery{
    50};  // how often a waiting caller is asked whether it still wants to

// Memory of batches, kept when a batch is dropped: the next one of the same size costs no page faults.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  static constexpr size_t kKept = 3;

  ~BufferPool() {
    for (const Buffer& buffer : free_) std::free(buffer.data);
  }
  std::shared_ptr<void> take(size_t bytes) {
    const size_t rounded = (std::max<size_t>(bytes, 1) + 63) / 64 * 64;
    void* data = nullptr;
    {
      MutexLock lock(mutex_);
      const auto it = std::find_if(free_.begin(), free_.end(), [&](const Buffer& b) { return b.bytes == rounded; });
      if (it != free_.end()) {
        data = it->data;
        free_.erase(it);
      }
    }
    if (data == nullptr) data = std::aligned_alloc(64, rounded);
    if (data == nullptr) {
      throw Error(ErrorKind::runtime, "out of memory: " + std::to_string(rounded) + " bytes for a batch of images",
                  "preprocess fewer images at a time");
    }
    return {data, [self = shared_from_this(), rounded](void* p) { self->give_back(p, rounded); }};
  }

 private:
  struct Buffer {
    void* data;
    size_t bytes;
  };
  void give_back(void* data, size_t bytes) {
    void* oldest = data;
    // In a child of fork() the mutex may be held by a thread that is not there.
    if (::getpid() == owner_) {
      MutexLock lock(mutex_);
      free_.push_back({data, bytes});
      oldest = nullptr;
      if (free_.size() > kKept) {
        oldest = free_.front().data;
        free_.pop_front();
      }
    }
    std::free(oldest);
  }

  const pid_t owner_ = ::getpid();
  Mutex mutex_;
  std::deque<Buffer> free_ PENSTOCK_GUARDED_BY(mutex_);
};

TensorView view_of(void* data, DType dtype, int64_t n, const Pipeline& pipeline, bool channels_last) {
  const int64_t h = pipeline.out_height(), w = pipeline.out_width(), views = pipeline.views();
  TensorView view{data, dtype, {n, 3, h, w}, {views * 3 * h * w, h * w, w, 1}};
  if (channels_last) view.strides = {views * 3 * h * w, 1, 3 * w, 3};
  if (views > 1) {
    view.shape.insert(view.shape.begin() + 1, views);
    view.strides.insert(view.strides.begin() + 1, 3 * h * w);
  }
  return view;
}

}  // namespace

// One work of the executor. Until it is done the executor's threads read the images and write their own place of the
// memory; what else there is the Preprocessor's mutex guards.
struct PendingImages::Request {
  std::vector<EncodedImage> images;
  ImageBatch batch;
  std::vector<std::byte> raw_images;  // before finishing, where GPUs make them
  uint64_t number = 0;                // of the work
  std::atomic<size_t> finished = 0;   // images
  std::atomic<bool> dropped = false;  // nobody wants the rest of them
  bool done = false;
  std::exception_ptr failure;  // of the environment
};

class PreprocessorImpl {
 public:
  using Request = PendingImages::Request;

  PreprocessorImpl(const Job& job, const std::string& split, const PreprocessorOptions& options)
      : split_(resolve_split(job, split)),
        context_(SplitContext::without_dataset(split_, {job.python, {}, python_stop_.get_token()})),
        wanted_(finisher_of(context_->pipeline(), finish_spec(options))),
        finisher_(options.raw_images ? finisher_of(context_->pipeline(), FinishSpec{}) : wanted_),
        timeout_ns_(static_cast<Nanoseconds>(job.trainer.timeout_s * 1e9)) {
    if (context_->pipeline().soft_classes() > 0) {
      throw Error(ErrorKind::config, "the pipeline of split '" + split_.name + "' mixes whole batches (MixUp, CutMix)",
                  "use a split for single images, such as the validation's");
    }
    const Variants& variants = context_->variants();
    if (variants.several()) random_transforms_.emplace_back("cpu_fraction");
    list_random(variants.shared(), split_.split.pipeline);
    if (variants.several()) list_random(variants.pipeline(Variant::gpu), split_.split.gpu_pipeline);
    num_threads_ = options.threads > 0 ? options.threads : job.loader.threads;
    const SignalsBlocked blocked;
    open_gpus_of(job);
    if (!executor_) executor_ = make_cpu_executor(num_threads_, {});
  }
  PreprocessorImpl(const PreprocessorImpl&) = delete;
  PreprocessorImpl& operator=(const PreprocessorImpl&) = delete;

  // In a child of fork() there are no threads to join, and the mutex may be held by one of them for ever.
  static std::shared_ptr<PreprocessorImpl> make(const Job& job, const std::string& split,
                                                const PreprocessorOptions& options) {
    check_switches();
    if (options.threads < 0 || options.threads > kMostThreads) {
      throw Error(ErrorKind::usage, "a Preprocessor of " + std::to_string(options.threads) + " threads",
                  "ask for 1 to " + std::to_string(kMostThreads) + ", or 0 for loader.threads");
    }
    auto made = std::make_unique<PreprocessorImpl>(with_fraction(job, split, options), split, options);
    return {made.release(), [](PreprocessorImpl* impl) {
              if (impl->here()) delete impl;
            }};
  }
  ~PreprocessorImpl() { stop(); }

  bool here() const noexcept { return ::getpid() == owner_; }

  static Job with_fraction(Job job, const std::string& split, const PreprocessorOptions& options) {
    if (!options.cpu_fraction) return job;
    if (!(*options.cpu_fraction >= 0 && *options.cpu_fraction <= 1)) {
      throw Error(ErrorKind::usage, "cpu_fraction is " + std::to_string(*options.cpu_fraction),
                  "it is a share of the images, between 0 and 1");
    }
    const auto found = job.splits.find(split);
    const bool two = found != job.splits.end() && !found->second.gpu_pipeline.empty();
    if (two) {
      found->second.cpu_fraction = options.cpu_fraction;
    } else {
      job.loader.cpu_fraction = options.cpu_fraction;
    }
    return job;
  }

  // `memory`: the caller's, or nullptr.
  static PendingImages submit(const std::shared_ptr<PreprocessorImpl>& self, std::vector<EncodedImage> images,
                              std::byte* memory = nullptr) {
    self->check_images(images);
    const auto n = static_cast<int64_t>(images.size());
    auto request = std::make_shared<Request>();
    const FinishSpec& finish = self->finisher_.spec();
    request->images = std::move(images);
    request->done = n == 0;
    request->batch.memory_ = memory != nullptr ? std::shared_ptr<void>(memory, [](void*) {})
                                               : self->buffers_->take(static_cast<size_t>(n) * self->bytes_per_image());
    request->batch.images_ = view_of(request->batch.memory_.get(), finish.dtype, n, self->context_->pipeline(),
                                     finish.memory_format == MemoryFormat::channels_last);
    request->batch.reasons_.resize(static_cast<size_t>(n));
    PendingImages pending;
    pending.pool_ = self;
    pending.request_ = request;
    if (n > 0) self->start(std::move(request));
    return pending;
  }

  bool ready(const Request& request) const {
    MutexLock lock(mutex_);
    return request.done;
  }

  ImageBatch wait(Request& request, const std::function<void()>& while_waiting) {
    const MonotonicClock clock;
    const Nanoseconds deadline = clock.now() + timeout_ns_;
    for (;;) {
      {
        MutexLock lock(mutex_);
        if (!request.done) done_.wait_for(mutex_, kAskCallerEvery);
        if (request.done) break;
        if (clock.now() > deadline) {
          throw Error(ErrorKind::runtime,
                      std::to_string(request.images.size() - request.finished) + " of " +
                          std::to_string(request.images.size()) + " images were not ready within trainer.timeout_s (" +
                          in_seconds(timeout_ns_) + "): " + std::to_string(under_way_.size()) + " calls share " +
                          std::to_string(num_threads_) + " threads",
                      "give the Preprocessor more threads, or fewer images at a time");
        }
      }
      if (while_waiting) while_waiting();
    }
    if (request.failure) std::rethrow_exception(request.failure);
    return std::move(request.batch);
  }

  // Takes back what no thread has begun; afterwards no thread knows the request.
  void abandon(Request& request) {
    request.dropped = true;
    const auto back = executor_->withdraw(work_key(request));
    MutexLock lock(mutex_);
    if (back) {
      under_way_.erase(request.number);
      request.done = true;
    }
    while (!request.done) done_.wait_for(mutex_, kAskCallerEvery);  // bounded by one image for each thread
  }

  const ResolvedSplit& split() const noexcept { return split_; }
  int height() const noexcept { return context_->pipeline().out_height(); }
  int width() const noexcept { return context_->pipeline().out_width(); }
  size_t bytes_per_image() const noexcept { return finisher_.bytes_per_sample(); }
  DType dtype() const noexcept { return wanted_.spec().dtype; }
  const Finisher& finisher() const noexcept { return wanted_; }
  int threads() const noexcept { return num_threads_; }
  const std::string& no_gpu() const noexcept { return no_gpu_; }

  std::vector<PreprocessorGpu> gpus() const {
    std::vector<PreprocessorGpu> out;
    for (const GpuFigures& gpu : executor_->figures().gpus) out.push_back({gpu.name, gpu.images, gpu.failure});
    return out;
  }
  const std::vector<std::string>& random_transforms() const noexcept { return random_transforms_; }

 private:
  // Which transforms draw is the same for every image. Functions get a generator: whether they draw, only they know.
  void list_random(const Pipeline& pipeline, const std::vector<TransformSpec>& transforms) {
    std::set<size_t> random;
    for (const TransformDraw& draw : pipeline.draw({}, {ImageFormat::jpeg, 512, 512})) random.insert(draw.position);
    for (size_t place = 0; place < transforms.size(); ++place) {
      const std::string& name = transforms[place].name;
      if (random.count(place) != 0 || name == "Python") random_transforms_.push_back(name);
    }
  }

  FinishSpec finish_spec(const PreprocessorOptions& options) const {
    FinishSpec spec = context_->pipeline().finish();
    if (options.dtype) spec.dtype = *options.dtype;
    const bool last = options.channels_last.value_or(split_.split.channels_last);
    spec.memory_format = last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
    return spec;
  }

  void check_images(const std::vector<EncodedImage>& images) const {
    if (!here()) {
      throw Error(ErrorKind::usage,
                  "this Preprocessor's threads are in process " + std::to_string(owner_) +
                      ", and this is a child of it made by fork()",
                  "make a Preprocessor in each process");
    }
    for (size_t i = 0; i < images.size(); ++i) {
      const EncodedImage& image = images[i];
      if (!image.index) {
        if (random_transforms_.empty()) continue;
        std::string names;
        for (const std::string& name : random_transforms_) names += (names.empty() ? "" : ", ") + name;
        throw Error(ErrorKind::usage,
                    "split '" + split_.name + "' draws (" + names + "), and image " + std::to_string(i) +
                        " has no index to draw for",
                    "give the arguments index and epoch for each image, or use a split whose pipeline draws nothing" +
                        std::string(context_->variants().functions().empty()
                                        ? ""
                                        : " (a Python transform gets a generator for the sample; index 0 does for one "
                                          "that does not use it)"));
      }
      if (*image.index < 0 || *image.index >= int64_t{1} << 48 || image.epoch < 0 || image.epoch >= int64_t{1} << 32 ||
          image.occurrence < 0 || image.occurrence >= int64_t{1} << 16) {
        throw Error(ErrorKind::usage,
                    "image " + std::to_string(i) + " cannot be drawn for: index " + std::to_string(*image.index) +
                        ", epoch " + std::to_string(image.epoch) + ", occurrence " + std::to_string(image.occurrence),
                    "an index has 48 bits, an epoch 32, an occurrence 16, and none is negative");
      }
    }
  }

  // A bad one is black.
  SampleRecord make_raw(SampleMaker& maker, const EncodedImage& image, std::span<std::byte> raw) const {
    const DrawKey key{split_.seed, static_cast<uint32_t>(image.epoch), static_cast<uint64_t>(image.index.value_or(0)),
                      static_cast<uint16_t>(image.occurrence)};
    SampleRecord record;
    record.reason = maker.make_image(image.bytes, key, raw.data(), record).reason;
    if (!record.reason.empty()) std::fill(raw.begin(), raw.end(), std::byte{0});
    return record;
  }

  static LeaseKey work_key(const Request& request) { return {.lease_stream = request.number}; }

  void open_gpus_of(const Job& job) {
    if (executor_of(job) == ExecutorKind::cpu) return;
    LoaderOptions options = loader_options(job);
    options.in_flight_batches.library.reset();     // what is served must not depend on which GPU has time
    options.in_flight_batches.exported_bytes = 0;  // nobody else reads
    try {
      executor_ = make_gpu_executor(num_threads_, {}, open_gpus(options.gpus), options.in_flight_batches, {},
                                    options.cpu_fraction);
      gpus_make_images_ = true;
    } catch (const Error& error) {
      if (job.loader.executor == ExecutorKind::gpu) throw;
      no_gpu_ = error.message();
    }
  }

  size_t raw_bytes() const { return context_->fields()[0].bytes_per_sample(); }

  // Where an image is before finishing: with the thread that makes it, or where a GPU finds the place later.
  std::span<std::byte> raw_place(Request& request, size_t place) const {
    thread_local std::vector<std::byte> own;
    if (!request.raw_images.empty()) return {request.raw_images.data() + place * raw_bytes(), raw_bytes()};
    own.resize(raw_bytes());
    return own;
  }

  void start(std::shared_ptr<Request> request) {
    const size_t n = request->images.size();
    auto work = std::make_unique<ChunkWork>();
    work->lease.samples.resize(n);
    work->split = context_;
    if (gpus_make_images_) {
      request->raw_images.resize(chunk_layout(context_->fields(), static_cast<int64_t>(n)).total_bytes);
      work->memory = request->raw_images.data();
    }
    work->make = [this, request](SampleMaker& maker, size_t i, std::span<std::byte* const>) {
      if (request->dropped) return SampleRecord{};
      try {
        return make_raw(maker, request->images[i], raw_place(*request, i));
      } catch (...) {
        MutexLock lock(mutex_);
        if (!request->failure) request->failure = std::current_exception();
        throw;
      }
    };
    work->finish = [this, request](size_t i) {
      if (request->dropped) return;
      finisher_.run(reinterpret_cast<const uint8_t*>(raw_place(*request, i).data()),
                    static_cast<std::byte*>(request->batch.images_.data) + i * finisher_.bytes_per_sample());
      ++request->finished;
    };
    work->on_done = [this](std::unique_ptr<ChunkWork> done) { collect(*done); };
    {
      MutexLock lock(mutex_);
      request->number = ++last_number_;
      work->lease.lease = work_key(*request);
      under_way_.emplace(request->number, std::move(request));
    }
    executor_->submit(std::move(work));
  }

  // In the thread that has done the last of it.
  void collect(ChunkWork& work) {
    MutexLock lock(mutex_);
    const std::shared_ptr<Request> request = std::move(under_way_.extract(work.lease.lease.lease_stream).mapped());
    for (size_t i = 0; i < work.records.size(); ++i) request->batch.reasons_[i] = std::move(work.records[i].reason);
    if (!work.failure.empty() && !request->failure) {
      request->failure = std::make_exception_ptr(Error(ErrorKind::runtime, work.failure));
    }
    request->done = true;
    done_.notify_all();
  }

  void stop() {
    python_stop_.request_stop();
    executor_.reset();
  }

  const pid_t owner_ = ::getpid();
  ResolvedSplit split_;
  std::stop_source python_stop_;
  std::shared_ptr<const SplitContext> context_;
  Finisher wanted_;
  Finisher finisher_;  // here: to that, or to the bytes as they are
  Nanoseconds timeout_ns_;
  std::vector<std::string> random_transforms_;
  std::shared_ptr<BufferPool> buffers_ = std::make_shared<BufferPool>();

  mutable Mutex mutex_;
  CondVar done_;
  std::map<uint64_t, std::shared_ptr<Request>> under_way_ PENSTOCK_GUARDED_BY(mutex_);
  uint64_t last_number_ PENSTOCK_GUARDED_BY(mutex_) = 0;
  int num_threads_ = 0;
  bool gpus_make_images_ = false;
  std::unique_ptr<Executor> executor_;
  std::string no_gpu_;
};

int64_t ImageBatch::num_good() const noexcept {
  return std::count_if(reasons_.begin(), reasons_.end(), [](const std::string& reason) { return reason.empty(); });
}

PendingImages& PendingImages::operator=(PendingImages&& other) noexcept {
  PendingImages old(std::move(*this));
  pool_ = std::move(other.pool_);
  request_ = std::move(other.request_);
  return *this;
}

PendingImages::~PendingImages() {
  if (request_ && pool_->here()) pool_->abandon(*request_);
}

bool PendingImages::ready() const {
  return request_ && pool_->ready(*request_);
}

ImageBatch PendingImages::wait(const std::function<void()>& while_waiting) {
  if (!request_) throw Error(ErrorKind::usage, "PendingImages::wait() a second time", "keep what the first one gave");
  if (!pool_->here()) {
    throw Error(ErrorKind::usage, "PendingImages::wait() in a child made by fork()",
                "make a Preprocessor in each process");
  }
  ImageBatch batch = pool_->wait(*request_, while_waiting);
  request_.reset();
  pool_.reset();
  return batch;
}

Preprocessor::Preprocessor(const std::string& job_file, const std::string& split, const PreprocessorOptions& options)
    : impl_(PreprocessorImpl::make(load_job(job_file, options.overrides), split, options)) {}

Preprocessor Preprocessor::from_text(const std::string& job_text, const std::string& name, const std::string& split,
                                     const PreprocessorOptions& options) {
  return Preprocessor(PreprocessorImpl::make(load_job_text(job_text, name, options.overrides), split, options));
}

Preprocessor::Preprocessor(std::shared_ptr<PreprocessorImpl> impl) : impl_(std::move(impl)) {}
Preprocessor::~Preprocessor() = default;
Preprocessor::Preprocessor(Preprocessor&&) noexcept = default;
Preprocessor& Preprocessor::operator=(Preprocessor&&) noexcept = default;

ImageBatch Preprocessor::run(std::span<const std::byte> encoded) const {
  return run(EncodedImage{encoded, std::nullopt, 0, 0});
}

ImageBatch Preprocessor::run(const EncodedImage& image) const {
  ImageBatch batch = run(std::vector<EncodedImage>{image});
  if (const std::string& reason = batch.reasons().front(); !reason.empty()) {
    throw Error(ErrorKind::dataset,
                "unusable image" + (image.index ? " (index " + std::to_string(*image.index) + ")" : std::string()) +
                    ": " + reason,
                "send a whole image file within the job's limits");
  }
  return batch;
}

std::vector<std::string> Preprocessor::run_into(std::vector<EncodedImage> images, std::span<std::byte> memory) const {
  if (memory.size() / bytes_per_image() < images.size()) {
    throw Error(ErrorKind::usage, std::to_string(memory.size()) + " bytes have no room for " +
                                      std::to_string(images.size()) + " images of " +
                                      std::to_string(bytes_per_image()) + " bytes");
  }
  return PreprocessorImpl::submit(impl_, std::move(images), memory.data()).wait().reasons();
}

ImageBatch Preprocessor::run(std::vector<EncodedImage> images) const {
  return submit(std::move(images)).wait();
}

PendingImages Preprocessor::submit(std::vector<EncodedImage> images) const {
  return PreprocessorImpl::submit(impl_, std::move(images));
}

int Preprocessor::height() const noexcept {
  return impl_->height();
}
int Preprocessor::width() const noexcept {
  return impl_->width();
}
size_t Preprocessor::bytes_per_image() const noexcept {
  return impl_->bytes_per_image();
}
DType Preprocessor::dtype() const noexcept {
  return impl_->dtype();
}
const Finisher& Preprocessor::finisher() const noexcept {
  return impl_->finisher();
}
int Preprocessor::threads() const noexcept {
  return impl_->threads();
}
const std::vector<std::string>& Preprocessor::random_transforms() const noexcept {
  return impl_->random_transforms();
}
std::vector<PreprocessorGpu> Preprocessor::gpus() const {
  return impl_->gpus();
}
const std::string& Preprocessor::no_gpu() const noexcept {
  return impl_->no_gpu();
}
std::string Preprocessor::spec() const {
  return canonical_json(impl_->split());
}
std::string Preprocessor::fingerprint() const {
  return pipeline_fingerprint(impl_->split());
}
std::string Preprocessor::state() const {
  return pipeline_state(impl_->split());
}
void Preprocessor::check(const std::string& state) const {
  check_pipeline(state, impl_->split());
}

}  // namespace penstock
