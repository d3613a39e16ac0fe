// The job, typed: what job.yaml means once defaults, overrides and checks are done.
//
//   Job job = load_job("job.yaml", {"splits.train.batch_size=32"});   // throws Error(config) listing everything
//
// Values only: no file is opened beyond the job file itself, no dataset is read.
// Keys, defaults, bounds and documentation of the file are one table: key_table.h.
// Thread-safety: all functions may be called from any thread (load_job and show_job read the environment).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/arithmetic.h"
#include "runtime/base/params.h"
#include "runtime/decode/image.h"
#include "sampler/plan.h"

namespace penstock {

enum class OnError : uint8_t { fail = 0, substitute = 1 };
enum class TransportChoice : uint8_t { automatic = 0, inproc = 1, shm = 2, mpi = 3 };
enum class GrantPolicy : uint8_t { deadline = 0, random = 1 };
enum class LoaderLossPolicy : uint8_t { go_on = 0, fail = 1 };
enum class AllLostPolicy : uint8_t { fail = 0, wait = 1 };
enum class ExecutorKind : uint8_t { automatic = 0, cpu = 1, gpu = 2 };
enum class NvjpegUse : uint8_t { off = 0, nearest = 1, interpolated = 2 };
enum class GpuLinksKind : uint8_t { off = 0, nccl = 1 };
enum class GpuEntropyKind : uint8_t { automatic = 0, index = 1, never = 2 };
enum class ReadMethod : uint8_t { automatic = 0, io_uring = 1, threads = 2 };

struct DatasetSpec {
  // Class folders of images; absolute once parsed. Relative in the job file: to the file's folder, because configs move
  // with their data; relative on the command line or in the environment: to the current folder, as in a shell.
  std::string folder;
  // Or pictures without classes that belong together by their names (runtime/datasets/paired_folders.h): the images,
  // and targets, masks or both. Placed as folder is.
  std::string images;
  std::string targets;
  std::string masks;
  // Or files that hold samples (runtime/datasets/containers.h), placed as folder is; or the user's own code
  // (runtime/datasets/python_source.h): a factory, or a pickled object from a program of the same job. Exactly one of
  // all these is given (kDatasetKinds).
  std::string tar;      // WebDataset's shards: "shards/{000..012}.tar"
  std::string cifar10;  // folder of the binary version, or of Python's
  std::string cifar100;
  std::string mnist;     // folder of idx files
  std::string list;      // file of "PATH LABEL" lines
  std::string csv;       // file with a line of column names
  std::string mds;       // folder of Mosaic's shards
  std::string tfrecord;  // files of tf.train.Example: "train-*-of-00128"
  std::string parquet;   // files that `penstock index` copied the samples of; needs `index`
  std::string pack;      // folder that `penstock pack` made
  bool train = true;     // of cifar10, cifar100 and mnist, or where val_share is: which part
  double val_share = 0;  // of each class folder's pictures, chosen by val_seed: the part that is not for training
  int64_t val_seed = 0;
  // Which member (tar), column (csv, mds, parquet) or feature (tfrecord) is what; empty: as containers.h says.
  std::string image;
  std::string label;
  std::string fields;       // further ones, with ',' between them; "caption:text"
  std::string index;        // made by `penstock index`, read instead of looking through the data
  bool local = false;       // each node has some of the files, and the index or the pack says which there are
  std::string python;       // factory "package.module:name", called with `args`
  std::string args = "{}";  // JSON object: keyword arguments of the factory
  // base64 text; or kHere and a name, a data set that stays in the program's process, "memory:NAME", a pickle in the memory
  // of the program that started the workers. kOwn before any of them: the samples are whatever the program's Python
  // returns, and a saved state is not compared by its bytes.
  std::string pickle;
  std::string main;  // the program that the object was pickled in, run as __mp_main__ first; empty: not needed
  // Folders that Python workers look for modules in, with ':' between them; absolute once parsed. Where Python is used
  // and none is given: the job file's folder.
  std::string path;

  // Is `pickle` nothing to compare a data set by?
  bool is_own() const noexcept { return is_here() || pickle.starts_with(kOwn); }
  bool is_here() const noexcept { return pickle.starts_with(kHere); }
  static constexpr std::string_view kHere = "here:";
  static constexpr std::string_view kOwn = "own:";
  bool is_python() const noexcept { return !python.empty() || !pickle.empty(); }
  // No classes: labels are 0 and mean nothing.
  bool is_paired() const noexcept { return !images.empty(); }
  // For messages: the folder, the files, the factory, or what stands for a pickled object.
  std::string title() const;
};

// Where the paths of a data set's samples begin.
enum class DatasetPlace : uint8_t {
  none,     // they are no files
  folder,   // at what the key names
  file,     // at the folder of the file that the key names
  pattern,  // at the folder of the files that the key's pattern names
};
// The keys of which a data set has exactly one.
struct DatasetKind {
  const char* key;
  std::string DatasetSpec::*value;
  DatasetPlace place;
  bool container;  // listed by runtime/datasets/containers.h; also decides index, pack and container_root()
  // Each picture is a file, which has a name (`penstock unpack` asks) and a size that no table has (the simulator asks).
  bool own_pictures;
};
inline constexpr DatasetKind kDatasetKinds[] = {
    {"folder", &DatasetSpec::folder, DatasetPlace::folder, false, true},
    {"images", &DatasetSpec::images, DatasetPlace::folder, false, true},
    {"tar", &DatasetSpec::tar, DatasetPlace::pattern, true, false},
    {"cifar10", &DatasetSpec::cifar10, DatasetPlace::folder, true, false},
    {"cifar100", &DatasetSpec::cifar100, DatasetPlace::folder, true, false},
    {"mnist", &DatasetSpec::mnist, DatasetPlace::folder, true, false},
    {"list", &DatasetSpec::list, DatasetPlace::file, true, true},
    {"csv", &DatasetSpec::csv, DatasetPlace::file, true, true},
    {"mds", &DatasetSpec::mds, DatasetPlace::folder, true, false},
    {"tfrecord", &DatasetSpec::tfrecord, DatasetPlace::pattern, true, false},
    {"parquet", &DatasetSpec::parquet, DatasetPlace::pattern, true, false},
    {"pack", &DatasetSpec::pack, DatasetPlace::folder, false, false},
    {"python", &DatasetSpec::python, DatasetPlace::none, false, false},
    {"pickle", &DatasetSpec::pickle, DatasetPlace::none, false, false}};

inline const DatasetKind* find_dataset_kind(std::string_view key) {  // nullptr when there is none
  for (const DatasetKind& kind : kDatasetKinds) {
    if (kind.key == key) return &kind;
  }
  return nullptr;
}

inline std::string DatasetSpec::title() const {
  for (const DatasetKind& kind : kDatasetKinds) {
    if (!(this->*kind.value).empty())
      return kind.value == &DatasetSpec::pickle ? "the pickled dataset" : this->*kind.value;
  }
  return "the pickled dataset";
}

struct SamplerSpec {
  bool shuffle = false;
  bool drop_last = false;  // DistributedSampler's
  // An order of another making; at most one of the three. Paths are placed as DatasetSpec::folder is.
  std::string indices;      // file: the order of every epoch; with shuffle, torch's SubsetRandomSampler
  std::string weights;      // file: torch's WeightedRandomSampler
  bool program = false;     // the program gives each iteration its order, this replica's share of it
  int64_t num_samples = 0;  // with weights: drawn per epoch; 0: as many as the dataset has
  bool replacement = true;  // with weights
  // The hash of the file's numbers, filled in where it is read (sampler_file.h): an order is its numbers, not its path.
  std::string file_hash;  // 32 hexadecimal digits
  int64_t file_count = 0;

  const std::string& file() const noexcept { return indices.empty() ? weights : indices; }
};

struct SplitSpec {
  Mode mode = Mode::train;
  DatasetSpec dataset;
  std::vector<TransformSpec> pipeline;
  // A second list, and which share of the samples the first one makes (transforms/variants.h): both given, or neither.
  std::vector<TransformSpec> gpu_pipeline;
  std::optional<double> cpu_fraction;
  SamplerSpec sampler;
  int64_t batch_size = 1;  // per replica
  bool drop_last = false;  // BatchSampler's, with tail torch
  Tail tail = Tail::torch;
  bool channels_last = false;
};

struct RolesSpec {
  int trainers = 1;             // per node; the other local ranks load
  bool trainers_given = false;  // it is no default: ranks may not say their roles besides
  int ranks_per_replica = 1;    // so many consecutive trainers get the same data
};

// The share of images that the CPU makes although GPUs would take them. Not given: the CPU makes what GPUs leave.
struct CpuFraction {
  std::optional<double> share;
  bool by_speed = false;  // `auto`: the share that learned speeds give (gpu/speed_split.h)

  CpuFraction() = default;
  CpuFraction(std::optional<double> of_all) : share(of_all) {}
  CpuFraction(double of_all) : share(of_all) {}
  static CpuFraction automatic() {
    CpuFraction out;
    out.by_speed = true;
    return out;
  }
  bool given() const noexcept { return share || by_speed; }
  friend bool operator==(const CpuFraction&, const CpuFraction&) = default;
};

struct LoaderSpec {
  int threads = 2;            // CPU threads per loader rank
  int prefetch = 2;           // batches ahead, per receiver and split
  double memory_gb = 2;       // per loader rank, for its chunk buffers: the chunks being made or on their way
  int chunk_samples = 0;      // samples per chunk; 0: chosen from the batch and the threads
  bool payload_crc = false;   // a CRC-32C of every chunk's payload, checked at the receiver
  int chunk_buffers = 0;      // chunk buffers per loader; 0: chosen from loader.threads, and memory_gb limits them
  double cache_gb = 0;        // per loader rank and split, for encoded samples that were read once
  double spool_gb = 16;       // per loader rank and split, on disk (TMPDIR), for shards that are compressed
  int read_ahead = 32;        // reads under way at a time, where the disk is slow; 0: none before they are needed
  double read_ahead_mb = 64;  // most that they hold, within what the chunk buffers leave of memory_gb
  ReadMethod read_method = ReadMethod::automatic;
  // most that learned restart points take, within half of what the chunk buffers leave of memory_gb
  double index_memory_mb = 512;
  ExecutorKind executor = ExecutorKind::cpu;
  int gpus = 1;                // per loader rank, where it uses GPUs
  double gpu_memory_mb = 512;  // of each GPU
  double gpu_duty = 1;         // share of a GPU's time
  double gpu_export_mb = 0;    // of each GPU besides, for images that trainers' GPUs read there; 0: none
  GpuLinksKind gpu_links = GpuLinksKind::off;
  NvjpegUse nvjpeg = NvjpegUse::off;
  GpuEntropyKind gpu_entropy = GpuEntropyKind::automatic;
  CpuFraction cpu_fraction;
};

struct TrainerSpec {
  int hold = 2;            // batches the program may hold besides the one in use
  double timeout_s = 300;  // longest wait for a batch
  double grace_s = 5;      // time the program gets after SIGTERM
};

struct BalancerSpec {
  GrantPolicy policy = GrantPolicy::deadline;
  double lease_timeout_s = 30;  // a chunk not made by then is granted again
  double heartbeat_s = 0.5;
  double lost_after_s = 10;  // a loader silent for this long is given up
  LoaderLossPolicy on_loader_loss = LoaderLossPolicy::go_on;
  AllLostPolicy on_all_lost = AllLostPolicy::fail;
  double wait_s = 300;          // how long on_all_lost: wait waits, from the last loss on
  int64_t remake_every = 4096;  // one chunk in so many is made by two loaders and compared; 0: none
  double retry_s = 30;          // how long a chunk that cannot be made is tried again before its job ends
  std::string log;              // record events and actions to this file; empty: do not

  // How long a loader that was lost may still come back when no other is left.
  double all_lost_wait_s() const noexcept { return on_all_lost == AllLostPolicy::wait ? wait_s : 0; }
};

struct MpiSpec {
  int64_t max_message_bytes = int64_t{16} << 20;
  // Longest wait for the other ranks, in each step of the start: MPI_Init, what they tell each other, the connections.
  double start_timeout_s = 300;
};

// Worker processes for datasets and transforms written in Python.
struct PythonSpec {
  std::string interpreter;       // empty: PENSTOCK_PYTHON, else the program's own, else python3 from PATH
  int workers = 0;               // per loader rank and split; 0: one for every thread
  double timeout_s = 20;         // longest time for one sample
  double start_timeout_s = 120;  // longest time for a worker to import its modules and make the dataset
  int attempts = 3;              // workers that one sample may cost before it is given up
};

struct BadSampleSpec {
  double max_fraction = 0.01;  // per replica and epoch, of the samples consumed
  int64_t max_count = 100;     // the larger of the two bounds applies
};

// What the job says for the streams of all its splits.
struct JobContent {
  uint64_t seed = 0;
  OnError on_error = OnError::fail;
  BadSampleSpec bad_samples;
  std::string arithmetic = "exact";
  std::string color = "rgb";
  bool exif = true;
  DecodeLimits limits;
};

struct Job : JobContent {
  std::string name;  // empty: made from the path, where trainers attach (client/attach.h)
  RolesSpec roles;
  LoaderSpec loader;
  TrainerSpec trainer;
  BalancerSpec balancer;
  MpiSpec mpi;
  PythonSpec python;
  TransportChoice transport = TransportChoice::automatic;
  std::map<std::string, SplitSpec> splits;

  std::string path;  // of the job file, for messages

  // How long a program waits for an answer that loaders are needed for: trainer.timeout_s. Where the job itself waits for
  // lost loaders, the time in which their silence is noticed and they may come back is added: otherwise the program would
  // give up before the job does, and nobody would name the loss as the cause.
  int64_t longest_wait_ns() const noexcept {
    const bool waits = balancer.on_all_lost == AllLostPolicy::wait;
    return static_cast<int64_t>((trainer.timeout_s + (waits ? balancer.lost_after_s + balancer.wait_s : 0)) * 1e9);
  }
};

// Everything a receiver and the loaders need to serve one split: plain data that travels as canonical JSON. Two ends
// with equal `canonical_json` produce equal streams; its XXH3-128 is the split's fingerprint.
struct ResolvedSplit : JobContent {
  std::string name;
  SplitSpec split;
};

ResolvedSplit resolve_split(const Job& job, const std::string& split);  // Error(usage) with a did-you-mean
PixelRules pixel_rules(const ResolvedSplit& split);
// What the sampler needs to know, for a dataset of this size. Where a file gives the order its count has to be filled
// in (with_sampler_file in sampler_file.h); where the program gives it, the plan is the dataset's own, and only its
// batch size and mode mean something.
PlanSpec plan_spec(const ResolvedSplit& split, int64_t dataset_size, int64_t num_replicas);
// How many replicas so many trainers are; Error(config) where roles.ranks_per_replica does not divide them.
int replicas_of(const Job& job, int trainers);
std::string canonical_json(const ResolvedSplit& split);
ResolvedSplit split_from_json(const std::string& json);  // Error(config) where it is not one of ours
// "splits.train.batch_size: 64 here, 32 there": the first difference between two canonical texts, for error messages.
std::string first_difference(const std::string& canonical_a, const std::string& canonical_b);

// Reads, overlays (defaults < file < environment PENSTOCK_CFG__A__B < `overrides` "a.b=value"), checks. All complaints
// are in one Error of kind config, each as
//   job.yaml:14:7: error: unknown key 'batchsize' in 'loader'
//      14 |       batchsize: 256
//         |       ^~~~~~~~~ did you mean 'batch_size'?
Job load_job(const std::string& path, const std::vector<std::string>& overrides = {});
// The same for a job that a program made; `name` stands in messages, and relative folders start at the current one.
Job load_job_text(const std::string& text, const std::string& name, const std::vector<std::string>& overrides = {});
Job parse_job(const std::string& text, const std::string& path, const std::vector<std::string>& overrides = {},
              const std::map<std::string, std::string>& environment = {});

// The resolved job as YAML; with_origin appends "# default", "# job.yaml:14", "# environment", "# command line".
// What it prints reads back to the same job.
std::string show_job(const std::string& path, const std::vector<std::string>& overrides, bool with_origin);
std::string show_job_text(const std::string& text, const std::string& path, const std::vector<std::string>& overrides,
                          const std::map<std::string, std::string>& environment, bool with_origin);
// JSON Schema (draft 7) of the job file, for editors.
std::string job_schema();

}  // namespace penstock
