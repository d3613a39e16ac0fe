#include "runtime/job/key_table.h"

#include <algorithm>
#include <map>

#include "runtime/base/lower_case.h"
#include "runtime/job/key_table_builder.h"
#include "runtime/job/suggest.h"

namespace penstock {
namespace {

// One entry a key: its member, its kind, what it is for.
// clang-format off
std::vector<Section<Job>> make_job_sections() {
  KeyTable<Job> keys;

  keys.section("", "");
  keys.machinery(PENSTOCK_MEMBER(name), text(),
      "Name of the job: trainers that attach to `penstock serve` find their receiver by it. Empty: made from the job "
      "file's path.");
  keys.content(PENSTOCK_MEMBER(seed), integer(0, kUnbounded), "Seed of the sample order and of every augmentation.");
  keys.content(PENSTOCK_MEMBER(on_error), one_of({"fail", "substitute"}),
      "What a bad sample does: fail the job, or be replaced by another sample, chosen from the seed (train) or masked "
      "as not valid (eval), within bad_samples.");
  keys.content(PENSTOCK_MEMBER(arithmetic), one_of({"exact", "fast", "opencv"}),
      "Pixel arithmetic. exact: libjpeg-turbo's default decode and Pillow's resampling, byte for byte. fast: JPEG "
      "photos that a crop and resize shrink to half or less are decoded at 1/2, 1/4 or 1/8; the order of samples and "
      "all draws stay, pixels are close but promised to nobody. opencv: what cv2.imread and cv2.resize give, byte for "
      "byte, for models that are served with them; all other steps are those of exact.");
  keys.content(PENSTOCK_MEMBER(color), one_of({"rgb", "bgr"}),
      "Order of the channels as they are delivered. bgr: swapped when all else is done; Normalize's numbers follow it, "
      "colour transforms and Python functions see RGB. GPUs leave it to the CPU.").sparse = true;
  keys.content(PENSTOCK_MEMBER(exif), boolean(),
      "arithmetic: opencv only: pictures are turned by their EXIF data, as cv2.imread does. false: "
      "IMREAD_IGNORE_ORIENTATION. (With exact and fast the transform ExifTranspose says it.)").sparse = true;
  keys.machinery(PENSTOCK_MEMBER(transport), one_of({"auto", "inproc", "shm", "mpi"}),
      "How loaders reach trainers. auto: threads of one process inproc, the same node shm, else mpi.");

  keys.section("bad_samples", "How many bad samples on_error: substitute puts up with; the larger bound applies.");
  keys.content(PENSTOCK_MEMBER(bad_samples.max_fraction), number(0, 1),
      "Largest fraction, per replica and epoch, of the samples consumed.");
  keys.content(PENSTOCK_MEMBER(bad_samples.max_count), integer(0, kUnbounded), "Largest number, per replica and epoch.");

  keys.section("roles", "Which ranks do what.");
  keys.machinery(PENSTOCK_MEMBER(roles.trainers), integer(1, 4096),
      "Trainer ranks per node, by local rank, first; the other local ranks load.");
  keys.machinery(PENSTOCK_MEMBER(roles.ranks_per_replica), integer(1, 4096),
      "So many consecutive trainers get the same data (tensor and pipeline parallelism): replicas = trainers / "
      "ranks_per_replica.");

  keys.section("loader", "The loader ranks.");
  keys.machinery(PENSTOCK_MEMBER(loader.threads), integer(1, 1024), "CPU threads per loader rank.");
  keys.machinery(PENSTOCK_MEMBER(loader.prefetch), integer(1, 1024),
      "Batches made ahead, per trainer and split; at least two batch buffers are kept.");
  keys.machinery(PENSTOCK_MEMBER(loader.memory_gb), number(0.001, 65536),
      "Memory per loader rank, in GB, for the chunks being made or on their way; what they leave is for samples read "
      "ahead, learned restart points, and pictures whose pixels take 16 MiB and more while they are made.");
  keys.machinery(PENSTOCK_MEMBER(loader.chunk_samples), integer(0, 65536),
      "Samples per unit of work; 0: chosen from batch and threads.");
  keys.machinery(PENSTOCK_MEMBER(loader.payload_crc), boolean(),
      "Guard the pixels of every chunk by a CRC-32C on their way (headers always are).");
  keys.machinery(PENSTOCK_MEMBER(loader.chunk_buffers), integer(0, 1048576),
      "Units of work a loader holds at a time; 0: chosen from loader.threads, and memory_gb limits them.");
  keys.machinery(PENSTOCK_MEMBER(loader.cache_gb), number(0, 65536),
      "Memory per loader rank and split, in GB, for encoded samples once they were read; 0: none.");
  keys.machinery(PENSTOCK_MEMBER(loader.spool_gb), number(0, 1048576),
      "Disk per loader rank and split, in GB, in TMPDIR, for shards that have to be decompressed.");
  keys.machinery(PENSTOCK_MEMBER(loader.read_ahead), integer(0, 1024),
      "Reads under way at a time for samples that are next, where reads have to wait for a disk; 0: each thread reads "
      "what it needs when it needs it.");
  keys.machinery(PENSTOCK_MEMBER(loader.read_ahead_mb), number(0, 1048576),
      "Memory per loader rank, in MB, for samples read ahead, within what the chunk buffers leave of memory_gb.");
  keys.machinery(PENSTOCK_MEMBER(loader.read_method), one_of({"auto", "io_uring", "threads"}),
      "How reads run ahead. io_uring: by the kernel, or by threads where it is refused, as auto; threads: by threads "
      "that wait.");
  keys.machinery(PENSTOCK_MEMBER(loader.index_memory_mb), number(0, 1048576),
      "Memory per loader rank, in MB, for where crops of JPEG files may be entered, learned while they are first "
      "decoded (less than one per cent of their bytes), within half of what the chunk buffers leave of memory_gb; 0: nothing "
      "is learned.");
  keys.machinery(PENSTOCK_MEMBER(loader.executor), one_of({"auto", "cpu", "gpu"}),
      "Who makes pixels of what the threads read. gpu: NVIDIA GPUs make the images that they can, same bytes, and a "
      "loader that has none refuses; auto: GPUs where there are any.");
  keys.machinery(PENSTOCK_MEMBER(loader.gpus), integer(1, 64),
      "GPUs per loader rank; a node's loaders count from its last GPU down, as trainers count up.");
  keys.machinery(PENSTOCK_MEMBER(loader.gpu_memory_mb), number(3, 1048576),
      "Memory taken of each GPU, in MB; three quarters as much pinned memory besides.");
  keys.machinery(PENSTOCK_MEMBER(loader.gpu_duty), number(0.01, 1),
      "Share of each GPU's time that a loader takes, where a trainer computes on the same GPU: one batch at a time, "
      "with rests. 1: all that there is to do, as soon as it is there.");
  keys.machinery(PENSTOCK_MEMBER(loader.gpu_export_mb), number(0, 1048576),
      "Memory of each GPU besides, in MB, from which trainers' GPUs of the node take images that are to be finished "
      "there (DataLoader(device=...)); same bytes. 0: images go by the host.");
  keys.machinery(PENSTOCK_MEMBER(loader.gpu_links), one_of({"off", "nccl"}),
      "With gpu_export_mb, to trainers' GPUs that cannot open that memory (of other nodes, or with transport: mpi): "
      "by NCCL, GPU to GPU; same bytes. off: by the host.");
  keys.machinery(PENSTOCK_MEMBER(loader.nvjpeg), one_of({"off", "nearest", "interpolated"}),
      "arithmetic: fast only: GPUs decode by NVIDIA's nvJPEG what has an index (penstock index, a pack), its chroma "
      "interpolated or the nearest. Pixels then depend on who makes an image.");
  keys.machinery(PENSTOCK_MEMBER(loader.gpu_entropy), one_of({"auto", "index", "never"}),
      "Whose entropy decoding of JPEG files is left to GPUs; same bytes. auto: of baseline files, which then go to "
      "the GPU as they are; index: of those that have an index; never: the threads', and coefficients go to the "
      "GPU.");
  keys.machinery(PENSTOCK_MEMBER(loader.cpu_fraction), number_or("auto", 0, 1),
      "Share of the images that the CPU makes though there are GPUs, chosen by a draw; same bytes. auto: the share "
      "that makes most images a second, by speeds learned while running. Default: the CPU makes what the GPUs do not "
      "take. In splits with gpu_pipeline, what that says counts, and auto shares what is for GPUs.");

  keys.section("trainer", "The trainer ranks and their training program.");
  keys.machinery(PENSTOCK_MEMBER(trainer.hold), integer(0, 64), "Batches the program may hold besides the one in use.");
  keys.machinery(PENSTOCK_MEMBER(trainer.timeout_s), number(0.001, 1e9),
      "Longest wait for a batch, in seconds; with balancer.on_all_lost: wait it is longer by lost_after_s and wait_s.");
  keys.machinery(PENSTOCK_MEMBER(trainer.grace_s), number(0, 1e6), "Time the program gets after SIGTERM, in seconds.");

  keys.section("balancer", "Who makes which chunk.");
  keys.machinery(PENSTOCK_MEMBER(balancer.policy), one_of({"deadline", "random"}),
      "Order of grants. deadline: the batch needed soonest first; random: for tests of the contract.");
  keys.machinery(PENSTOCK_MEMBER(balancer.lease_timeout_s), number(0.001, 1e6),
      "A chunk not made by then is granted again, in seconds.");
  keys.machinery(PENSTOCK_MEMBER(balancer.heartbeat_s), number(0.001, 1e6),
      "How often a loader says that it lives, in seconds.");
  keys.machinery(PENSTOCK_MEMBER(balancer.lost_after_s), number(0.001, 1e6),
      "A loader silent for this long is given up, in seconds; a trainer's rank ends the job.");
  keys.machinery(PENSTOCK_MEMBER(balancer.on_loader_loss), one_of({"continue", "fail"}),
      "When a loader dies or is given up. continue: the others make what it had, and batches are the same; fail: the "
      "job ends with exit code 5.");
  keys.machinery(PENSTOCK_MEMBER(balancer.on_all_lost), one_of({"fail", "wait"}),
      "When no loader is left. fail: the job ends at once; wait: for wait_s, for one that was silent and comes again, "
      "unless all have died.");
  keys.machinery(PENSTOCK_MEMBER(balancer.wait_s), number(0, 1e6),
      "How long on_all_lost: wait waits, in seconds, from the loss of the last loader on.");
  keys.machinery(PENSTOCK_MEMBER(balancer.retry_s), number(0, 1e6),
      "What cannot be made for a reason of the environment (a failing disk, no memory) is tried again for so long, with "
      "pauses and by all loaders, before the job ends, in seconds; 0: three times at most, at once.");
  keys.machinery(PENSTOCK_MEMBER(balancer.remake_every), integer(0, kUnbounded),
      "One chunk in so many is made by two loaders, where there are two, and compared; a difference ends the job and "
      "names both. 0: none.");
  keys.machinery(PENSTOCK_MEMBER(balancer.log), text(), "File to record events and decisions in; empty: none.");

  keys.section("mpi", "The mpi transport.");
  keys.machinery(PENSTOCK_MEMBER(mpi.max_message_bytes), integer(4096, 2147483647), "Larger chunks travel in pieces.");
  keys.machinery(PENSTOCK_MEMBER(mpi.start_timeout_s), number(1, 86400),
      "Longest wait of a rank for the others in each step of the job's start, of which MPI_Init is the first.");

  keys.section("python", "Worker processes, for datasets and transforms written in Python.");
  keys.machinery(PENSTOCK_MEMBER(python.interpreter), text(),
      "Python to run workers with; empty: the environment's PENSTOCK_PYTHON, else the one that runs the program where it "
      "loads for itself, else python3 from PATH.");
  keys.machinery(PENSTOCK_MEMBER(python.workers), integer(0, 1024),
      "Workers per loader rank and split; 0: one for every thread.");
  keys.machinery(PENSTOCK_MEMBER(python.timeout_s), number(0.001, 1e6),
      "Longest time for one sample, in seconds; then its worker is killed and the sample asked of a new one.");
  keys.machinery(PENSTOCK_MEMBER(python.start_timeout_s), number(0.001, 1e6),
      "Longest time for a worker to import its modules and make the dataset, in seconds.");
  keys.machinery(PENSTOCK_MEMBER(python.attempts), integer(1, 100),
      "Workers that one sample may cost a loader before it is given up.");

  keys.section("limits", "What is refused in a sample before memory is taken for it.");
  keys.content(PENSTOCK_MEMBER(limits.max_pixels), integer(1, kUnbounded), "Pixels of an image.");
  keys.content(PENSTOCK_MEMBER(limits.max_encoded_bytes), integer(1, kUnbounded), "Bytes of a file.");
  keys.content(PENSTOCK_MEMBER(limits.max_side), integer(1, kUnbounded), "Width or height in pixels.");
  keys.content(PENSTOCK_MEMBER(limits.max_scans), integer(1, kUnbounded), "Scans of a progressive JPEG.");
  keys.content(PENSTOCK_MEMBER(limits.max_warnings), integer(0, kUnbounded),
      "Warnings of the decoder before a file counts as bad.");
  keys.content(PENSTOCK_MEMBER(limits.max_field_bytes), integer(1, 1 << 30),
      "Bytes of a text or bytes field. Every sample has so much room for each in chunk buffers and batch buffers.")
      .sparse = true;
  return keys.take();
}

std::vector<Section<SplitSpec>> make_split_sections() {
  KeyTable<SplitSpec> keys;

  keys.section("", "");
  keys.content(PENSTOCK_MEMBER(mode), one_of({"train", "eval"}),
      "train: padding is ordinary data, as in torch; eval: every sample counts exactly once.");
  keys.content(PENSTOCK_MEMBER(batch_size), integer(1, 1048576), "Samples per batch and replica.");
  keys.content(PENSTOCK_MEMBER(drop_last), boolean(), "BatchSampler's: leave out a last batch that is not full.");
  keys.content(PENSTOCK_MEMBER(tail), one_of({"torch", "pad", "drop"}),
      "The end of an epoch. torch: the two drop_last flags, per replica; pad, drop: to a multiple of the global "
      "batch, so that the number of replicas may change in mid-epoch.");
  keys.content(PENSTOCK_MEMBER(channels_last), boolean(), "Batches in NHWC memory order instead of NCHW.");
  keys.content(PENSTOCK_MEMBER(cpu_fraction), number(0, 1),
      "With gpu_pipeline: share of the samples that pipeline makes, chosen by a draw for each sample and epoch; "
      "gpu_pipeline makes the others.")
      .sparse = true;

  keys.section("dataset", "Where the samples come from.");
  keys.content(PENSTOCK_MEMBER(dataset.folder), text(),
      "Folder of class folders of pictures (.jpg, .png, .webp and torchvision's other endings). A relative path is relative to the job file's folder; on the "
      "command line and in the environment, to the current one.");
  keys.content(PENSTOCK_MEMBER(dataset.images), text(),
      "Instead of folder: folder of pictures without classes, at any depth, which have targets or masks. Relative as "
      "folder is.");
  keys.content(PENSTOCK_MEMBER(dataset.targets), text(),
      "With images: folder of what each should become, pictures of the same size and relative name; the batch's field "
      "'target'.");
  keys.content(PENSTOCK_MEMBER(dataset.masks), text(),
      "With images: folder of their masks, PNG files of class ids with the same size and relative name; the batch's "
      "field 'mask'.");
  keys.content(PENSTOCK_MEMBER(dataset.tar), text(),
      "Instead of folder: WebDataset's tar shards, 'shards/{000..012}.tar'; braces, and '*' and '?' in the file's "
      "name. Relative as folder is.");
  keys.content(PENSTOCK_MEMBER(dataset.cifar10), text(), "Instead of folder: folder of CIFAR-10, binary version or Python's.");
  keys.content(PENSTOCK_MEMBER(dataset.cifar100), text(), "Instead of folder: folder of CIFAR-100, binary version or Python's.");
  keys.content(PENSTOCK_MEMBER(dataset.mnist), text(),
      "Instead of folder: folder of MNIST's idx files, or others like them.");
  keys.content(PENSTOCK_MEMBER(dataset.list), text(),
      "Instead of folder: a file of lines 'PATH LABEL'; paths relative to it.");
  keys.content(PENSTOCK_MEMBER(dataset.csv), text(),
      "Instead of folder: a CSV file whose first line names the columns; paths relative to it.");
  keys.content(PENSTOCK_MEMBER(dataset.mds), text(), "Instead of folder: folder of Mosaic's MDS shards (index.json).");
  keys.content(PENSTOCK_MEMBER(dataset.tfrecord), text(),
      "Instead of folder: TFRecord files of tf.train.Example, named as for tar.");
  keys.content(PENSTOCK_MEMBER(dataset.parquet), text(),
      "Instead of folder: Parquet files, named as for tar, whose samples `penstock index` has copied beside the index "
      "(which needs pyarrow).");
  keys.content(PENSTOCK_MEMBER(dataset.pack), text(),
      "Instead of folder: folder that `penstock pack` made of a data set.");
  keys.content(PENSTOCK_MEMBER(dataset.train), boolean(),
      "With cifar10, cifar100 and mnist: the training part, else the test part; and which part of val_share.");
  keys.content(PENSTOCK_MEMBER(dataset.val_share), number(0, 0.99),
      "With folder: this share of each class is for validation (train: false), and the rest for training; 0: all of it is "
      "one data set.");
  keys.content(PENSTOCK_MEMBER(dataset.val_seed), integer(0, kUnbounded), "Which pictures val_share takes.");
  keys.content(PENSTOCK_MEMBER(dataset.image), text(),
      "Which member (tar), column (csv, mds, parquet) or feature (tfrecord) is the picture. Default: the only "
      "picture, 'image', the only picture (parquet: or 'image'), 'image/encoded'.");
  keys.content(PENSTOCK_MEMBER(dataset.label), text(),
      "Which one is the label. Default: 'cls' (tar), 'label' (csv, mds, parquet), 'image/class/label' (tfrecord), "
      "where there is one.");
  keys.content(PENSTOCK_MEMBER(dataset.fields), text(),
      "Further ones that a batch has, with ',' between them: members, columns, features; NAME:text and NAME:bytes for "
      "values of any length.");
  keys.content(PENSTOCK_MEMBER(dataset.index), text(),
      "File that `penstock index` made of this data, read instead of looking through it. Relative as folder is.");
  keys.content(PENSTOCK_MEMBER(dataset.local), boolean(),
      "With index or pack: each node's disks hold some of the files, in any number of copies. Loaders say which they "
      "have, and are given the samples in them; index and pack.index are the same on all nodes.");
  keys.content(PENSTOCK_MEMBER(dataset.python), text(),
      "Instead of folder: a Python function or class 'package.module:name'; what it returns has __len__ and "
      "__getitem__.");
  keys.content(PENSTOCK_MEMBER(dataset.args), mapping(), "Keyword arguments for the function that python names.");
  keys.content(PENSTOCK_MEMBER(dataset.path), text(),
      "Folders in which Python workers look for modules, with ':' between them; relative as folder is. Default, where "
      "Python is used: the job file's.");
  keys.content(PENSTOCK_MEMBER(dataset.pickle), text(),
      "Instead of folder: a pickled Python dataset as base64; written by penstock.DataLoader, not by hand.");
  keys.content(PENSTOCK_MEMBER(dataset.main), text(),
      "With pickle: the program whose __main__ has the classes, and its arguments; written by penstock.DataLoader, "
      "not by hand.");
  keys.all_sparse();
  for (const DatasetKind& kind : kDatasetKinds) keys.one_of(kind.key);

  keys.section("sampler", "The order of the samples; torch's DistributedSampler, or RandomSampler for one replica.");
  keys.content(PENSTOCK_MEMBER(sampler.shuffle), boolean(), "A new order every epoch, torch's for the seed.");
  keys.content(PENSTOCK_MEMBER(sampler.drop_last), boolean(),
      "DistributedSampler's: drop samples until the replicas get the same number, instead of repeating the first "
      "ones.");
  keys.content(PENSTOCK_MEMBER(sampler.indices), text(),
      "File of indices, .npy or text with one a line: the order of every epoch, before tail and replicas; with "
      "shuffle, torch's SubsetRandomSampler. Relative as dataset.folder is.")
      .sparse = true;
  keys.content(PENSTOCK_MEMBER(sampler.weights), text(),
      "File of weights, one for every sample of the dataset, .npy or text: torch's WeightedRandomSampler. "
      "Relative as "
      "dataset.folder is.")
      .sparse = true;
  keys.content(PENSTOCK_MEMBER(sampler.num_samples), integer(0, 281474976710656.0),
      "With weights: samples drawn for an epoch; 0: as many as the dataset has.")
      .sparse = true;
  keys.content(PENSTOCK_MEMBER(sampler.replacement), boolean(), "With weights: has to be true.").sparse = true;
  keys.content(PENSTOCK_MEMBER(sampler.program), boolean(),
      "The program gives the order of every iteration; written by penstock.DataLoader(sampler=...), not by hand.")
      .sparse = true;
  keys.content(PENSTOCK_MEMBER(sampler.file_hash), text(),
      "XXH3-128 of the numbers in the file that indices or weights name; filled in where the file is read. "
      "Where it "
      "is given, the file must have it.")
      .sparse = true;
  keys.content(PENSTOCK_MEMBER(sampler.file_count), integer(0, kUnbounded),
      "How many numbers that file holds; filled in as well.")
      .sparse = true;
  return keys.take();
}

// clang-format on
#undef PENSTOCK_MEMBER

}  // namespace

const std::vector<Section<Job>>& job_sections() {
  static const std::vector<Section<Job>> sections = make_job_sections();
  return sections;
}

const std::vector<Section<SplitSpec>>& split_sections() {
  static const std::vector<Section<SplitSpec>> sections = make_split_sections();
  return sections;
}

std::string name_elsewhere(const std::string& key) {
  static const std::map<std::string, std::string> known = [] {
    std::map<std::string, std::string> out;
    // A key that stands in another section under the same name; a name that several sections have is no help.
    std::map<std::string, int> times;
    const auto note = [&](const std::string& prefix, const std::string& section, const std::string& name) {
      ++times[name];
      out[name] = prefix + (section.empty() ? "" : section + ".") + name;
    };
    for (const auto& section : job_sections()) {
      for (const auto& entry : section.keys) note("", section.name, entry.info.name);
      if (!section.name.empty()) note("", "", section.name);
    }
    for (const auto& section : split_sections()) {
      for (const auto& entry : section.keys) note("splits.NAME.", section.name, entry.info.name);
    }
    for (const auto& [name, count] : times) {
      if (count > 1) out.erase(name);
    }
    out.insert({{"num_workers", "loader.threads"},
                {"workers", "loader.threads"},
                {"prefetch_factor", "loader.prefetch"},
                {"root", "splits.NAME.dataset.folder"},
                {"path", "splits.NAME.dataset.folder"},
                {"data", "splits.NAME.dataset"},
                {"batch", "splits.NAME.batch_size"},
                {"bs", "splits.NAME.batch_size"},
                {"pipeline", "splits.NAME.pipeline"},
                {"transform", "splits.NAME.pipeline"},
                {"transforms", "splits.NAME.pipeline"},
                {"gpu_pipeline", "splits.NAME.gpu_pipeline"},
                {"gpu_transform", "splits.NAME.gpu_pipeline"},
                {"cpu_fraction", "loader.cpu_fraction"},  // or the split's, which says so where it is missing
                {"cpu_percentage", "loader.cpu_fraction"},
                {"dataset", "splits.NAME.dataset"},
                {"sampler", "splits.NAME.sampler"}});
    return out;
  }();
  const auto found = known.find(lower_case(key));
  return found == known.end() ? std::string() : found->second;
}

}  // namespace penstock
