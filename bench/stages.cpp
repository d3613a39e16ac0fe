// Where the CPU time of a sample goes: the loader's own classes run stage by stage on the samples of a split, on one
// thread, timed by that thread's CPU clock.
//
//   bench_stages --job JOB --split train --seconds 3          # one line of JSON
//   bench_stages ... --learned first                          # an epoch in which restart points are learned
//   bench_stages ... --learned 1                              # the epoch after 1 (or more) in which they were
//
// Before anything is timed, the pixels that the stages give are compared with SampleMaker's, which loaders call, and
//   the coefficients of the entropy stage alone, entered at the crop where there is an index, with the whole scan's.
//
// Stages are differences, because the library fuses them: a sample is read; its entropy-coded data is decoded alone,
//   as far as the decoder would go; the decoder makes the crop's rows (IDCT to colour is what it takes beyond the
//   entropy stage); the pipeline makes the image (resampling is what it takes beyond the decoder). `whole` is
//   SampleMaker and Finisher in one go, in passes of their own; `other` is what the stages' sum lacks of that.
// Files that are not baseline JPEG of our own decoder's have no entropy stage here; they are left out, and counted.
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/decode/jpeg/coefficient_rows.h"
#include "runtime/decode/jpeg/jpeg_frame.h"
#include "runtime/decode/jpeg/jpeg_kernels.h"
#include "runtime/decode/jpeg/mcu_window.h"
#include "runtime/decode/row_sink.h"
#include "runtime/job/job.h"
#include "runtime/loader/loader.h"
#include "runtime/pixels/finish.h"
#include "runtime/sample/sample_maker.h"
#include "runtime/sample/split_context.h"

namespace penstock {
namespace {

int64_t cpu_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// The entropy stage of OwnJpegDecoder::decode and nothing else of it.
class EntropyStage {
 public:
  bool run(EncodedView bytes, const Box& box, const SideIndex* index, bool learn = false) {
    if (!read_baseline_frame(bytes, frame_)) return false;
    const McuWindow window = mcu_window(frame_, box);
    const int interval = learn && frame_.restart_interval == 0 ? learned_interval(frame_, bytes.size()) : 0;
    notes_.begin(interval, 0, int64_t{frame_.mcu_columns} * frame_.mcu_rows);
    return rows_.with_lanes_or_without([&](bool lanes) { return read(bytes, window, index, lanes); });
  }

  // What the last run made: the box's rows one after the other.
  std::span<const int16_t> coefficients() const { return {coefficients_.data(), used_}; }
  // Whether the rows' coefficients are kept, for comparison, or each row overwrites the last one, as in the decoder.
  void keep_rows(bool keep) { keep_rows_ = keep; }

 private:
  bool read(EncodedView bytes, const McuWindow& window, const SideIndex* index, bool lanes) {
    if (!rows_.begin(bytes, frame_, index, window, lanes, lanes ? &notes_ : nullptr)) return false;
    const size_t row_size = window.most_coefficients(frame_);
    const size_t rows = keep_rows_ ? static_cast<size_t>(window.end_row - window.first_row) : 1;
    used_ = rows * row_size;
    if (coefficients_.size() < used_) coefficients_.resize(used_);
    if (keep_rows_) std::memset(coefficients_.data(), 0, used_ * sizeof(int16_t));
    for (int row = window.first_row; row < window.end_row; ++row) {
      const size_t at = keep_rows_ ? static_cast<size_t>(row - window.first_row) * row_size : 0;
      if (!rows_.read_row(row, window.target(frame_, row, coefficients_.data() + at))) return false;
    }
    return rows_.finish();
  }

  JpegFrame frame_;
  CoefficientRows rows_;
  RestartPointNotes notes_;
  bool keep_rows_ = false;
  size_t used_ = 0;
  std::vector<int16_t> coefficients_;
};

// Where rows go that nobody wants: sixteen of them, as many as a resize keeps (row_resampler.h).
class RowsForNobody final : public RowSink {
 public:
  void begin(int width) { stride_ = static_cast<size_t>(width) + kRowSinkPadding; }
  PlanarRow row(int y) override {
    uint8_t* const at = memory_.get(48 * stride_) + static_cast<size_t>(y % 16) * stride_;
    return {at, at + 16 * stride_, at + 32 * stride_};
  }

 private:
  size_t stride_ = 0;
  AlignedBytes memory_;
};

enum Stage { read, header, entropy, pixels, resample, finish, stages };
constexpr const char* kStageNames[stages] = {"read_ms",   "header_ms",   "entropy_ms",
                                             "pixels_ms", "resample_ms", "finish_ms"};

class Measurement {
 public:
  // `epochs`: in which restart points were learned before; -1: none are, now or before; 0: they are now.
  Measurement(const Job& job, const std::string& split, int epochs)
      : learned_(epochs >= 0 ? std::make_shared<LearnedMemory>(int64_t{16} << 30) : nullptr),
        first_(epochs == 0),
        context_(SplitContext::open(resolve_split(job, split), posix_file_system(), {job.python},
                                    loader_options(job).sources, learned_)),
        maker_(context_),
        scratch_(context_->split().limits),
        finisher_(finisher_of(context_->pipeline(), context_->pipeline().finish())),
        image_(context_->fields()[0].bytes_per_sample()),
        finished_(finisher_.bytes_per_sample() + 64) {
    for (int epoch = 1; epoch <= epochs; ++epoch) {
      for (int64_t i = 0; i < size(); ++i) make(i, whole_, epoch);
    }
    if (epochs > 0) learned_->set_limit(learned_->figures().bytes);  // and nothing more
  }

  int64_t size() const { return context_->source().size(); }

  // One sample by stages; false where there is no entropy stage.
  bool by_stages(int64_t number, std::array<int64_t, stages>& times) {
    std::array<int64_t, stages + 1> at{};
    at[0] = cpu_ns();
    const DrawKey key = key_of(number);
    require(context_->source().load(key, sample_));
    at[1] = cpu_ns();
    const Pipeline& pipeline = context_->pipeline();
    ImageHeader head;
    require(read_header(sample_.image, scratch_.limits, head, pipeline.header_options()));
    const Draws draws = pipeline.draw(key, head);
    const Box box = pipeline.describe(head, draws).crop;
    const SideIndex* index = nullptr;
    if (!sample_.restart_points.empty() && SideIndex::read(sample_.restart_points, index_)) index = &index_;
    std::shared_ptr<const LearnedIndexes::Known> known;
    if (learned_ && !first_) known = context_->learned()->find(number, sample_.image);
    if (known) index = &known->index;
    SideIndex* const more = first_ ? &more_ : nullptr;
    at[2] = cpu_ns();
    const bool supported = entropy_.run(sample_.image, box, index, first_);
    at[3] = cpu_ns();
    PixelView view;
    rows_.begin(box.width);
    require(scratch_.decoder.decode(sample_.image, head, box, storage_, view,
                                    {.index = index, .learned = more, .rows = &rows_}));
    at[4] = cpu_ns();
    const std::span<uint8_t> out{reinterpret_cast<uint8_t*>(image_.data()), image_.size()};
    require(pipeline.apply(ImageInput{sample_.image, {}, index, more}, head, draws, out, scratch_, {}));
    at[5] = cpu_ns();
    finisher_.run(out.data(), finished_.data());
    at[6] = cpu_ns();
    if (!supported) return false;
    times[read] += at[1] - at[0];
    times[header] += at[2] - at[1];
    times[entropy] += at[3] - at[2];
    times[pixels] += (at[4] - at[3]) - (at[3] - at[2]);
    times[resample] += (at[5] - at[4]) - (at[4] - at[3]);
    times[finish] += at[6] - at[5];
    return true;
  }

  // The same sample as loaders make it.
  int64_t whole(int64_t number) {
    const int64_t before = cpu_ns();
    make(number, whole_, 0);
    finisher_.run(reinterpret_cast<const uint8_t*>(whole_.data()), finished_.data());
    const int64_t took = cpu_ns() - before;
    if (first_) context_->learned()->clear();
    return took;
  }

  void verify(int64_t number) {
    std::array<int64_t, stages> times{};
    const bool supported = by_stages(number, times);
    make(number, whole_, 0);
    if (first_) context_->learned()->clear();
    if (image_ != whole_) throw std::runtime_error(context_->source().key(number) + ": the stages' pixels differ");
    if (!supported || sample_.restart_points.empty()) return;
    // by_stages left sample_ and index_ as they were.
    ImageHeader head;
    require(read_header(sample_.image, scratch_.limits, head, context_->pipeline().header_options()));
    const Box box = context_->pipeline().describe(head, context_->pipeline().draw(key_of(number), head)).crop;
    EntropyStage without;
    without.keep_rows(true);
    entropy_.keep_rows(true);
    const bool same = entropy_.run(sample_.image, box, &index_) && without.run(sample_.image, box, nullptr) &&
                      std::ranges::equal(entropy_.coefficients(), without.coefficients());
    entropy_.keep_rows(false);
    if (!same) throw std::runtime_error(context_->source().key(number) + ": the index gives other coefficients");
  }

 private:
  DrawKey key_of(int64_t number) const { return {context_->split().seed, 0, static_cast<uint64_t>(number), 0}; }
  void make(int64_t number, std::vector<std::byte>& image, int64_t epoch) {
    image.resize(image_.size());
    int64_t label = 0;
    std::byte* const fields[] = {image.data(), reinterpret_cast<std::byte*>(&label)};
    const SampleRecord record = maker_.make({number, number, 0, true}, epoch, fields);
    if (record.bad) throw std::runtime_error(record.key + ": " + record.reason);
  }
  void require(const SampleStatus& status) const {
    if (!status.ok()) throw std::runtime_error(status.reason);
  }

  std::shared_ptr<LearnedMemory> learned_;
  bool first_;
  std::shared_ptr<const SplitContext> context_;
  SampleMaker maker_;
  Scratch scratch_;
  Finisher finisher_;
  EntropyStage entropy_;
  SourceSample sample_;
  SideIndex index_;
  SideIndex more_;
  PixelBuffer storage_;
  RowsForNobody rows_;
  std::vector<std::byte> image_;
  std::vector<std::byte> whole_;
  std::vector<std::byte> finished_;
};

int run(const std::string& job_file, const std::string& split, double seconds, int epochs) {
  const Job job = load_job(job_file);
  if (arithmetic_of(job.arithmetic) != Arithmetic::exact) {
    throw std::runtime_error("these are the stages of an exact job; bench_fast measures fast ones");
  }
  Measurement measurement(job, split, epochs);
  const int64_t size = measurement.size();
  for (int64_t i = 0; i < std::min<int64_t>(size, 64); ++i) measurement.verify(i * size / std::min<int64_t>(size, 64));

  // In runs of MCUs of a few milliseconds by turns, so that both see the same machine.
  constexpr int64_t mcu_run = 16;
  std::array<int64_t, stages> times{};
  int64_t whole = 0;
  int64_t counted = 0;
  int64_t left_out = 0;
  std::vector<int64_t> chosen;
  const int64_t end = cpu_ns() + static_cast<int64_t>(seconds * 1e9);
  for (int64_t next = 0; counted == 0 || cpu_ns() < end; next += mcu_run) {
    if (left_out >= size && counted == 0)
      throw std::runtime_error("no file is baseline JPEG that our own decoder takes");
    chosen.clear();
    for (int64_t i = next; i < next + mcu_run; ++i) {
      if (measurement.by_stages(i % size, times)) {
        chosen.push_back(i % size);
      } else {
        ++left_out;
      }
    }
    for (const int64_t number : chosen) whole += measurement.whole(number);
    counted += static_cast<int64_t>(chosen.size());
  }

  const double per_image = 1e-6 / static_cast<double>(counted);
  int64_t explained = 0;
  std::printf("{\"images\": %lld, \"left_out\": %lld, \"vectors\": \"%s\"", static_cast<long long>(counted),
              static_cast<long long>(left_out), jpeg_kernel_target());
  for (size_t stage = 0; stage < stages; ++stage) {
    explained += times[stage];
    std::printf(", \"%s\": %.5f", kStageNames[stage], static_cast<double>(times[stage]) * per_image);
  }
  std::printf(", \"other_ms\": %.5f, \"whole_ms\": %.5f}\n", static_cast<double>(whole - explained) * per_image,
              static_cast<double>(whole) * per_image);
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  std::string job = "job.yaml";
  std::string split = "train";
  double seconds = 3;
  int epochs = -1;
  try {
    for (int i = 1; i < argc; i += 2) {
      const std::string name = argv[i];
      if (i + 1 == argc) throw std::runtime_error("'" + name + "' has no value");
      const std::string value = argv[i + 1];
      if (name == "--job") {
        job = value;
      } else if (name == "--split") {
        split = value;
      } else if (name == "--seconds") {
        seconds = std::stod(value);
      } else if (name == "--learned") {
        epochs = value == "first" ? 0 : std::stoi(value);
      } else {
        throw std::runtime_error("there is no option '" + name + "'");
      }
    }
    return penstock::run(job, split, seconds, epochs);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_stages: %s\n", error.what());
    return 1;
  }
}
