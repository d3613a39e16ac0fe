// Where the CPU time of a sample goes: the loader's own classes run stage by stage on the samples of a split, on one
// thread, timed by that thread's CPU clock.
//
//   bench_stages --job JOB --split train --seconds 3          # one line of JSON
//
// Before anything is timed, the pixels that the stages give are compared with SampleMaker's, which loaders call, and
//   the coefficients of the entropy stage alone, entered at the crop where there is an index, with the whole scan's.
//
// Stages are differences, because the library fuses them: a sample is read; its entropy-coded data is decoded alone,
//   as far as the decoder would go; the decoder makes the crop's pixels (IDCT to colour is what it takes beyond the
//   entropy stage); the pipeline makes the image (resampling is what it takes beyond the decoder). `whole` is
//   SampleMaker and Finisher in one go, in passes of their own; `other` is what the stages' sum lacks of that.
// Files that the baseline decoder does not take have no entropy stage; they are left out, and counted.
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

#include "runtime/augment/finish.h"
#include "runtime/config/job.h"
#include "runtime/decode/baseline_frame.h"
#include "runtime/decode/coefficient_tiles.h"
#include "runtime/decode/entropy.h"
#include "runtime/decode/jpeg_kernels.h"
#include "runtime/loader/loader.h"
#include "runtime/loader/split_context.h"

namespace penstock {
namespace {

int64_t cpu_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// The entropy stage of BaselineDecoder::decode and nothing else of it: which rows and columns of MCUs a box needs, what
// is decoded of them and what is only passed over. Whoever changes the walk there changes it here; main() compares
// coefficients, and bench/selftest.py the stages' sum with the whole.
class EntropyStage {
 public:
  bool run(EncodedView bytes, const Box& box, const SideIndex* index) {
    if (!read_baseline_frame(bytes, frame_) || !entropy_.begin(bytes, frame_)) return false;
    const bool rows_interpolated = frame_.components == 3 && frame_.max_v == 2;
    const int reach = rows_interpolated ? 2 : 0;
    const int mcu_height = 8 * frame_.max_v;
    const int first_row = std::max(0, box.y - reach) / mcu_height;
    int rows = (box.y + box.height - 1 + reach) / mcu_height + 1;
    rows = std::min((rows + frame_.row_group - 1) / frame_.row_group * frame_.row_group, frame_.mcu_rows);
    choose_columns(box);

    size_t used = 0;
    for (int r = index == nullptr ? 0 : first_row; r < rows; ++r) {
      if (r < first_row) {
        if (!entropy_.read_row(nullptr)) return false;
        continue;
      }
      const int top = r * mcu_height;
      CoefficientTarget target = place(used, top < box.y + box.height && top + mcu_height > box.y);
      if (index == nullptr ? !entropy_.read_row(&target) : !read_columns(r, *index, target)) return false;
    }
    used_ = used;
    return index != nullptr || entropy_.library_would_stop_quietly();
  }

  // Of the last run: the box's rows one after the other.
  std::span<const int16_t> coefficients() const { return {coefficients_.data(), used_}; }
  // Whether the rows' coefficients are kept, for comparison, or each row overwrites the last one, as in the decoder.
  void keep_rows(bool keep) { keep_rows_ = keep; }

 private:
  void choose_columns(const Box& box) {
    const int last = box.x + box.width - 1;
    if (frame_.max_h == 2) {
      first_mcu_ = std::max(0, box.x / 2 - 1) / 8;
      end_mcu_ = std::min(frame_.component[1].width - 1, last / 2 + 1) / 8 + 1;
    } else {
      first_mcu_ = box.x / 8;
      end_mcu_ = last / 8 + 1;
    }
  }

  CoefficientTarget place(size_t& used, bool luma) {
    if (!keep_rows_) used = 0;
    CoefficientTarget target;
    target.first_mcu = first_mcu_;
    target.end_mcu = end_mcu_;
    const size_t begin = used;
    std::array<size_t, 3> at{};
    for (size_t c = luma ? 0 : 1; c < static_cast<size_t>(frame_.components); ++c) {
      const auto blocks = static_cast<size_t>((end_mcu_ - first_mcu_) * frame_.component[c].h);
      at[c] = used;
      target.row_stride[c] = tiles_of(blocks) * tile_coefficients;
      used += target.row_stride[c] * static_cast<size_t>(frame_.component[c].v);
    }
    if (coefficients_.size() < used) coefficients_.resize(used);
    for (size_t c = luma ? 0 : 1; c < static_cast<size_t>(frame_.components); ++c) {
      target.tiles[c] = coefficients_.data() + at[c];
    }
    std::memset(coefficients_.data() + begin, 0, (used - begin) * sizeof(int16_t));
    return target;
  }

  bool read_columns(int row, const SideIndex& index, const CoefficientTarget& target) {
    const int64_t wanted = int64_t{row} * frame_.mcu_columns + first_mcu_;
    const auto point = static_cast<size_t>(wanted / index.interval());
    if (point >= index.size()) return false;
    const int64_t entry = static_cast<int64_t>(point) * index.interval();
    if (entropy_.next_mcu() > wanted || entropy_.next_mcu() < entry) {
      if (!entropy_.enter(index.at(point), entry)) return false;
    }
    return entropy_.skip(wanted - entropy_.next_mcu()) && entropy_.read(end_mcu_, target);
  }

  BaselineFrame frame_;
  EntropyDecoder entropy_;
  int first_mcu_ = 0;
  int end_mcu_ = 0;
  bool keep_rows_ = false;
  size_t used_ = 0;
  std::vector<int16_t> coefficients_;
};

enum Stage { read, header, entropy, pixels, resample, finish, stages };
constexpr const char* stage_names[stages] = {"read_ms",   "header_ms",   "entropy_ms",
                                             "pixels_ms", "resample_ms", "finish_ms"};

class Measurement {
 public:
  Measurement(const Job& job, const std::string& split)
      : context_(SplitContext::open(resolve_split(job, split), posix_file_system(), {job.python},
                                    loader_options(job).sources)),
        maker_(context_),
        scratch_(context_->split().limits),
        finisher_(finisher_of(context_->pipeline(), context_->pipeline().finish())),
        image_(context_->fields()[0].bytes_per_sample()),
        finished_(finisher_.bytes_per_sample() + 64) {}

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
    if (!sample_.entry_points.empty() && SideIndex::read(sample_.entry_points, index_)) index = &index_;
    at[2] = cpu_ns();
    const bool mine = entropy_.run(sample_.image, box, index);
    at[3] = cpu_ns();
    PixelView view;
    require(scratch_.decoder.decode(sample_.image, head, box, storage_, view, index));
    at[4] = cpu_ns();
    const std::span<uint8_t> out{reinterpret_cast<uint8_t*>(image_.data()), image_.size()};
    require(pipeline.apply(ImageInput{sample_.image, {}, index}, head, draws, out, scratch_, {}));
    at[5] = cpu_ns();
    finisher_.run(out.data(), finished_.data());
    at[6] = cpu_ns();
    if (!mine) return false;
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
    make(number, whole_);
    finisher_.run(reinterpret_cast<const uint8_t*>(whole_.data()), finished_.data());
    return cpu_ns() - before;
  }

  void verify(int64_t number) {
    std::array<int64_t, stages> times{};
    const bool mine = by_stages(number, times);
    make(number, whole_);
    if (image_ != whole_) throw std::runtime_error(context_->source().key(number) + ": the stages' pixels differ");
    if (!mine || sample_.entry_points.empty()) return;
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
  void make(int64_t number, std::vector<std::byte>& image) {
    image.resize(image_.size());
    int64_t label = 0;
    std::byte* const fields[] = {image.data(), reinterpret_cast<std::byte*>(&label)};
    const SampleRecord record = maker_.make({number, number, 0, true}, 0, fields);
    if (record.bad) throw std::runtime_error(record.key + ": " + record.reason);
  }
  void require(const Verdict& verdict) const {
    if (!verdict.ok()) throw std::runtime_error(verdict.reason);
  }

  std::shared_ptr<const SplitContext> context_;
  SampleMaker maker_;
  Scratch scratch_;
  Finisher finisher_;
  EntropyStage entropy_;
  SourceSample sample_;
  SideIndex index_;
  PixelBuffer storage_;
  std::vector<std::byte> image_;
  std::vector<std::byte> whole_;
  std::vector<std::byte> finished_;
};

int run(const std::string& job_file, const std::string& split, double seconds) {
  Measurement measurement(load_job(job_file), split);
  const int64_t size = measurement.size();
  for (int64_t i = 0; i < std::min<int64_t>(size, 64); ++i) measurement.verify(i * size / std::min<int64_t>(size, 64));

  // In stretches of a few milliseconds by turns, so that both see the same machine.
  constexpr int64_t stretch = 16;
  std::array<int64_t, stages> times{};
  int64_t whole = 0;
  int64_t counted = 0;
  int64_t left_out = 0;
  std::vector<int64_t> chosen;
  const int64_t end = cpu_ns() + static_cast<int64_t>(seconds * 1e9);
  for (int64_t next = 0; counted == 0 || cpu_ns() < end; next += stretch) {
    if (left_out >= size && counted == 0) throw std::runtime_error("no file is the baseline decoder's");
    chosen.clear();
    for (int64_t i = next; i < next + stretch; ++i) {
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
    std::printf(", \"%s\": %.5f", stage_names[stage], static_cast<double>(times[stage]) * per_image);
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
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--job") job = argv[i + 1];
    if (name == "--split") split = argv[i + 1];
    if (name == "--seconds") seconds = std::stod(argv[i + 1]);
  }
  try {
    return penstock::run(job, split, seconds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_stages: %s\n", error.what());
    return 1;
  }
}
