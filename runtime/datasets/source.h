// The seam between a data set and everything else: samples by index, as encoded bytes.
//
//   std::unique_ptr<Source> source = make_source(split.dataset, limits);
//   SourceSample sample;                                   // one per thread, reused
//   SampleStatus status = source->load(draw_key, sample);  // bad: the sample; Error: the disk
//   sample.image; sample.label; sample.fields; source->key(index);
//
// Index order is part of the contract: samplers, hashes and checkpoints speak of indices, so two sources with equal
//   fingerprints must give the same sample for every index. An implementation fixes its order when it opens.
// Thread-safety: all functions may be called from any number of threads at once.
// Ownership: a source owns its index; bytes and SourceSamples are the caller's.
// Failure: opening throws Error(dataset) naming the folder or file, with a remedy. `load` and `read` throw Error(runtime)
//   naming the file for trouble of the environment (a disk, a permission, a file that vanished), and return a bad
//   SampleStatus for what is a property of the sample itself (larger than the limit). An index outside [0, size) is
//   Error(usage).
// Adding a data set format: see runtime/README.md, Where to add something.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/fields.h"
#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"
#include "runtime/base/index_ranges.h"
#include "runtime/base/sample.h"

namespace penstock {

struct DatasetSpec;   // runtime/job/job.h
struct DecodeLimits;  // runtime/decode/image.h

// One sample as the source gives it. `storage` and `parts` are reused from sample to sample; the spans point into them.
struct SourceSample {
  // Where decoding may enter the image, a SideIndex as text (runtime/decode/jpeg/side_index.h); empty: nobody has
  // looked. Points into `storage`, or into memory of the source, which keeps it.
  std::span<const std::byte> restart_points;
  std::vector<std::byte> storage;
  std::vector<std::vector<std::byte>> parts;  // where several files make a sample
  std::span<const std::byte> image;           // a whole image file; or RGB pixels, row after row, where width > 0
  int width = 0;
  int height = 0;
  int64_t label = 0;
  // What fields() has after image and label, one span each: a further image or mask its encoded file, a fixed-size
  // field its bytes, unaligned, `bytes` and `text` the value alone. A span may also point into what the source keeps.
  std::vector<std::span<const std::byte>> fields;

  // Nothing of the sample before it is left to see; buffers keep their memory.
  void reset(int64_t next_label) {
    image = {};
    restart_points = {};
    fields.clear();
    width = height = 0;
    label = next_label;
  }
};

// What a source may take besides memory for its index: machinery, no content.
struct SourceBudget {
  int64_t cache_bytes = 0;                  // memory for encoded samples once they were read (cached_source.h)
  int64_t spool_bytes = int64_t{16} << 30;  // disk for shards that have to be decompressed (spool.h)
};

// A part of a file that load() is going to read: what reading ahead goes by (read_ahead.h).
struct FilePart {
  static constexpr uint64_t kWholeFile = UINT64_MAX;

  std::string path;
  uint64_t offset = 0;
  uint64_t bytes = kWholeFile;
  int64_t max_bytes = 0;                     // of a whole file; a larger one will not be read
  std::shared_ptr<const FileReader> reader;  // where it is open already
};

// What of a data set can be read on this node.
struct ReadableSamples {
  IndexRanges ranges;
  std::string lacking;  // for messages: the first file that is not here, and how many others
};

class Source {
 public:
  virtual ~Source() = default;

  virtual int64_t size() const = 0;

  // All of them, but where dataset.local says that each node has some of the files (files_here.h). Reading another one is
  // a FileError.
  virtual ReadableSamples readable() const { return {IndexRanges::all(size()), {}}; }

  // What a sample consists of: image, label, then any others. Shapes of images and masks are {} here: the pipeline
  // fixes them; and so is max_bytes of `bytes` and `text`: the limits fix it.
  virtual const FieldTable& fields() const = 0;

  // What people call the sample: a path relative to the data set's folder.
  virtual std::string key(int64_t index) const = 0;

  virtual int64_t label(int64_t index) const = 0;
  // False: the data set has no labels, and all of them are 0.
  virtual bool labelled() const { return true; }
  // Empty where labels are numbers without names.
  virtual const std::vector<std::string>& class_names() const = 0;

  // Encoded bytes of the sample, as they lie in its file or files. May touch the disk the first time, so no job asks for it.
  virtual int64_t encoded_size(int64_t index) const = 0;
  // The same, where it is known without touching a disk; 0: it is not. What the balancer weighs chunks by before they are
  // made (protocol/sample_sizes.h); what was read it learns from ChunkDone.
  virtual int64_t known_size(int64_t index) const { return (void)index, 0; }

  // Makes `bytes` the encoded image; empty where the status is bad.
  virtual SampleStatus read(int64_t index, std::vector<std::byte>& bytes) const = 0;

  // What it has taken of its budget by now.
  virtual SourceBudget taken() const { return {0, 0}; }

  // The whole sample number key.index; what makers of samples call. A source that draws (user's code may) draws by
  // `key` alone. A source that gives pixels has itself checked limits.max_side and max_pixels, and that `image` is
  // exactly width * height * 3 bytes, with PixelBuffer::kPadding readable ones behind them; read() of such a sample is
  // Error(usage). Values of varying length are checked against limits.max_field_bytes, and texts for UTF-8, by the
  // maker (put_value); but a source that would have to allocate for a longer one looks at the limit first.
  virtual SampleStatus load(const DrawKey& key, SourceSample& sample) const {
    const auto index = static_cast<int64_t>(key.index);
    sample.width = sample.height = 0;
    sample.fields.clear();
    sample.restart_points = {};
    SampleStatus status = read(index, sample.storage);
    sample.image = sample.storage;
    if (status.ok()) sample.label = label(index);
    return status;
  }

  // Appends what load() of this sample will read, as far as that is known without touching a disk; a hint: nothing
  // depends on it but the time that load() takes. None for an index outside [0, size).
  virtual void list_reads(int64_t index, std::vector<FilePart>& parts) const { (void)index, (void)parts; }

  // Equal exactly for equal lists of (key, label). Contents are not covered: reading a million files to start a job
  // would cost more than the mistake it finds.
  virtual Sum128 fingerprint() const = 0;
};

class PythonWorkers;

// Opens what `dataset` names. `files` must outlive the source. `workers`: for a dataset in Python, made with its
// config.
std::unique_ptr<Source> make_source(const DatasetSpec& dataset, const DecodeLimits& limits,
                                    FileSystem& files = posix_file_system(),
                                    std::shared_ptr<const PythonWorkers> workers = nullptr,
                                    const SourceBudget& budget = {});

}  // namespace penstock
