#include "runtime/config/key_table.h"

#include <algorithm>
#include <map>
#include <type_traits>

#include "runtime/config/suggest.h"

namespace penstock {
namespace {

template <class M>
ParamValue to_value(const M& member, const ParamInfo& info) {
  if constexpr (std::is_enum_v<M>) {
    return info.choices.at(static_cast<size_t>(member));
  } else if constexpr (std::is_same_v<M, std::optional<double>>) {
    return member ? ParamValue(*member) : ParamValue();
  } else if constexpr (std::is_same_v<M, CpuFraction>) {
    return member.by_speed ? ParamValue(info.choices.front()) : to_value(member.share, info);
  } else if constexpr (std::is_same_v<M, bool> || std::is_same_v<M, std::string> || std::is_same_v<M, double>) {
    return member;
  } else {
    static_assert(std::is_integral_v<M>);
    return static_cast<int64_t>(member);
  }
}

template <class M>
void from_value(M& member, const ParamValue& value, const ParamInfo& info) {
  if constexpr (std::is_enum_v<M>) {
    const auto found = std::find(info.choices.begin(), info.choices.end(), std::get<std::string>(value));
    member = static_cast<M>(found - info.choices.begin());
  } else if constexpr (std::is_same_v<M, std::optional<double>>) {
    const auto* const number = std::get_if<double>(&value);
    member = number != nullptr ? M(*number) : M();
  } else if constexpr (std::is_same_v<M, CpuFraction>) {
    member.by_speed = std::holds_alternative<std::string>(value);
    from_value(member.share, value, info);
  } else if constexpr (std::is_same_v<M, bool> || std::is_same_v<M, std::string> || std::is_same_v<M, double>) {
    member = std::get<M>(value);
  } else {
    member = static_cast<M>(std::get<int64_t>(value));
  }
}

enum class Need { optional, required };
enum class Part { content, machinery };

// `member` is a generic lambda that returns a reference to the member, const or not. Enumerations rely on their values
// counting from 0 in the order of `choices`.
template <class T, class Member>
Key<T> key(Part part, ParamInfo info, Member member, Need need = Need::optional) {
  using M = std::remove_cvref_t<decltype(member(std::declval<T&>()))>;
  if constexpr (std::is_same_v<M, int>) info.maximum = std::min(info.maximum, 2147483647.0);
  if (need == Need::optional) info.default_value = to_value(member(T{}), info);
  Key<T> out;
  out.content = part == Part::content;
  out.get = [member, info](const T& t) { return to_value(member(t), info); };
  out.set = [member, info](T& t, const ParamValue& value) { from_value(member(t), value, info); };
  out.info = std::move(info);
  return out;
}

#define PENSTOCK_MEMBER(path) \
  [](auto&& t) -> auto& {     \
    return t.path;            \
  }

ParamInfo integer(std::string name, double minimum, double maximum, std::string doc) {
  return {.name = std::move(name), .kind = ParamKind::integer, .minimum = minimum, .maximum = maximum, .doc = doc};
}
ParamInfo number(std::string name, double minimum, double maximum, std::string doc) {
  return {.name = std::move(name), .kind = ParamKind::number, .minimum = minimum, .maximum = maximum, .doc = doc};
}
ParamInfo number_or(std::vector<std::string> choices, std::string name, double minimum, double maximum,
                    std::string doc) {
  ParamInfo out = number(std::move(name), minimum, maximum, std::move(doc));
  out.choices = std::move(choices);
  return out;
}
ParamInfo boolean(std::string name, std::string doc) {
  return {.name = std::move(name), .kind = ParamKind::boolean, .doc = doc};
}
ParamInfo text(std::string name, std::vector<std::string> choices, std::string doc) {
  return {.name = std::move(name), .kind = ParamKind::text, .choices = std::move(choices), .doc = doc};
}

constexpr double unbounded = std::numeric_limits<double>::infinity();

std::vector<Section<Job>> make_job_sections() {
  const auto content = Part::content;
  const auto machinery = Part::machinery;
  std::vector<Section<Job>> sections;
  sections.push_back(
      {"",
       "",
       {key<Job>(machinery,
                 text("name", {},
                      "Name of the job: trainers that attach to `penstock serve` find their port by it. Empty: made "
                      "from the job file's path."),
                 PENSTOCK_MEMBER(name)),
        key<Job>(content, integer("seed", 0, unbounded, "Seed of the sample order and of every augmentation."),
                 PENSTOCK_MEMBER(seed)),
        key<Job>(content,
                 text("on_error", {"fail", "substitute"},
                      "What a bad sample does: fail the job, or be replaced by another sample, chosen from the seed "
                      "(train) or masked as not valid (eval), within bad_samples."),
                 PENSTOCK_MEMBER(on_error)),
        key<Job>(
            content,
            text("arithmetic", {"exact", "fast"},
                 "Pixel arithmetic. exact: libjpeg-turbo's default decode and Pillow's resampling, byte for byte. fast: "
                 "JPEG photos that a crop and resize shrink to half or less are decoded at 1/2, 1/4 or 1/8; the order of "
                 "samples and all draws stay, pixels are close but promised to nobody."),
            PENSTOCK_MEMBER(arithmetic)),
        key<Job>(machinery,
                 text("transport", {"auto", "inproc", "shm", "mpi"},
                      "How loaders reach trainers. auto: threads of one process inproc, the same node shm, else mpi."),
                 PENSTOCK_MEMBER(transport))}});
  sections.push_back(
      {"bad_samples",
       "How many bad samples on_error: substitute puts up with; the larger bound applies.",
       {key<Job>(content,
                 number("max_fraction", 0, 1, "Largest fraction, per replica and epoch, of the samples consumed."),
                 PENSTOCK_MEMBER(bad_samples.max_fraction)),
        key<Job>(content, integer("max_count", 0, unbounded, "Largest number, per replica and epoch."),
                 PENSTOCK_MEMBER(bad_samples.max_count))}});
  sections.push_back({"roles",
                      "Which ranks do what.",
                      {key<Job>(machinery,
                                integer("trainers", 1, 4096,
                                        "Trainer ranks per node, by local rank, first; the other local ranks load."),
                                PENSTOCK_MEMBER(roles.trainers)),
                       key<Job>(machinery,
                                integer("ranks_per_replica", 1, 4096,
                                        "So many consecutive trainers get the same data (tensor and pipeline "
                                        "parallelism): replicas = trainers / ranks_per_replica."),
                                PENSTOCK_MEMBER(roles.ranks_per_replica))}});
  sections.push_back(
      {"loader",
       "The loader ranks.",
       {key<Job>(machinery, integer("threads", 1, 1024, "CPU threads per loader rank."),
                 PENSTOCK_MEMBER(loader.threads)),
        key<Job>(
            machinery,
            integer("prefetch", 1, 1024, "Batches made ahead, per trainer and split; at least two slots are kept."),
            PENSTOCK_MEMBER(loader.prefetch)),
        key<Job>(machinery,
                 number("memory_gb", 0.001, 65536, "Memory per loader rank, in GB, for the chunks being made or on their way."),
                 PENSTOCK_MEMBER(loader.memory_gb)),
        key<Job>(machinery,
                 integer("chunk_samples", 0, 65536, "Samples per unit of work; 0: chosen from batch and threads."),
                 PENSTOCK_MEMBER(loader.chunk_samples)),
        key<Job>(machinery,
                 boolean("payload_crc", "Guard the pixels of every chunk by a CRC-32C on their way (headers always are)."),
                 PENSTOCK_MEMBER(loader.payload_crc)),
        key<Job>(machinery,
                 integer("cells", 0, 1048576, "Units of work a loader holds at a time; 0: chosen from loader.threads, and memory_gb limits them."),
                 PENSTOCK_MEMBER(loader.cells)),
        key<Job>(machinery,
                 number("cache_gb", 0, 65536,
                        "Memory per loader rank and split, in GB, for encoded samples once they were read; 0: none."),
                 PENSTOCK_MEMBER(loader.cache_gb)),
        key<Job>(machinery,
                 number("spool_gb", 0, 1048576,
                        "Disk per loader rank and split, in GB, in TMPDIR, for shards that have to be decompressed."),
                 PENSTOCK_MEMBER(loader.spool_gb)),
        key<Job>(machinery,
                 integer("read_ahead", 0, 1024,
                         "Reads under way at a time for samples that are next, where reads have to wait for a disk; 0: "
                         "each thread reads what it needs when it needs it."),
                 PENSTOCK_MEMBER(loader.read_ahead)),
        key<Job>(machinery,
                 number("read_ahead_mb", 0, 1048576,
                        "Memory per loader rank, in MB, for samples read ahead, within what the cells leave of memory_gb."),
                 PENSTOCK_MEMBER(loader.read_ahead_mb)),
        key<Job>(machinery,
                 text("read_method", {"auto", "io_uring", "threads"},
                      "How reads run ahead. io_uring: by the kernel, or by threads where it is refused, as auto; threads: "
                      "by threads that wait."),
                 PENSTOCK_MEMBER(loader.read_method)),
        key<Job>(machinery,
                 number("index_memory_mb", 0, 1048576,
                        "Memory per loader rank, in MB, for where crops of JPEG files may be entered, learnt while they "
                        "are first decoded (less than one per cent of their bytes), within half of what the cells leave of "
                        "memory_gb; 0: nothing is learnt."),
                 PENSTOCK_MEMBER(loader.index_memory_mb)),
        key<Job>(machinery,
                 text("executor", {"auto", "cpu", "card"},
                      "Who makes pixels of what the threads read. card: NVIDIA cards make the images that they can, "
                      "same bytes, and a loader that has none refuses; auto: cards where there are any."),
                 PENSTOCK_MEMBER(loader.executor)),
        key<Job>(machinery,
                 integer("cards", 1, 64,
                         "Cards per loader rank; a node's loaders count from its last card down, as trainers count up."),
                 PENSTOCK_MEMBER(loader.cards)),
        key<Job>(machinery,
                 number("card_memory_mb", 3, 1048576,
                        "Memory taken of each card, in MB; three quarters as much pinned memory besides."),
                 PENSTOCK_MEMBER(loader.card_memory_mb)),
        key<Job>(machinery,
                 number("card_duty", 0.01, 1,
                        "Share of each card's time that a loader takes, where a trainer computes on the same card: one "
                        "batch at a time, with rests. 1: all that there is to do, as soon as it is there."),
                 PENSTOCK_MEMBER(loader.card_duty)),
        key<Job>(machinery,
                 number("card_share_mb", 0, 1048576,
                        "Memory of each card besides, in MB, from which trainers' cards of the node take images that are to "
                        "be finished there (DataLoader(device=...)); same bytes. 0: images go by the host."),
                 PENSTOCK_MEMBER(loader.card_share_mb)),
        key<Job>(machinery,
                 text("card_links", {"off", "nccl"},
                      "With card_share_mb, to trainers' cards that cannot open that memory (of other nodes, or with "
                      "transport: mpi): by NCCL, card to card; same bytes. off: by the host."),
                 PENSTOCK_MEMBER(loader.card_links)),
        key<Job>(machinery,
                 text("nvjpeg", {"off", "nearest", "interpolated"},
                      "arithmetic: fast only: cards decode by NVIDIA's nvJPEG what has an index (penstock index, a pack), "
                      "its chroma interpolated or the nearest. Pixels then depend on who makes an image."),
                 PENSTOCK_MEMBER(loader.nvjpeg)),
        key<Job>(machinery,
                 text("card_entropy", {"auto", "index", "never"},
                      "Whose entropy decoding of JPEG files is left to cards; same bytes. auto: of baseline files, "
                      "which then go to the card as they are; index: of those that have an index; never: the "
                      "threads', and coefficients go to the card."),
                 PENSTOCK_MEMBER(loader.card_entropy)),
        key<Job>(machinery,
                 number_or({"auto"}, "cpu_fraction", 0, 1,
                           "Share of the images that the CPU makes though there are cards, chosen by a draw; same bytes. "
                           "auto: the share that makes most images a second, by speeds learnt while running. Default: "
                           "the CPU makes what the cards do not take. In splits with card_pipeline, what that says counts, "
                           "and auto shares what is for cards."),
                 PENSTOCK_MEMBER(loader.cpu_fraction))}});
  sections.push_back(
      {"trainer",
       "The trainer ranks and their training program.",
       {key<Job>(machinery, integer("hold", 0, 64, "Batches the program may hold besides the one in use."),
                 PENSTOCK_MEMBER(trainer.hold)),
        key<Job>(machinery, number("timeout_s", 0.001, 1e9, "Longest wait for a batch, in seconds."),
                 PENSTOCK_MEMBER(trainer.timeout_s)),
        key<Job>(machinery, number("grace_s", 0, 1e6, "Time the program gets after SIGTERM, in seconds."),
                 PENSTOCK_MEMBER(trainer.grace_s))}});
  sections.push_back(
      {"balancer",
       "Who makes which chunk.",
       {key<Job>(machinery,
                 text("policy", {"deadline", "random"},
                      "Order of grants. deadline: the batch needed soonest first; random: for tests of the contract."),
                 PENSTOCK_MEMBER(balancer.policy)),
        key<Job>(machinery,
                 number("lease_timeout_s", 0.001, 1e6, "A chunk not made by then is granted again, in seconds."),
                 PENSTOCK_MEMBER(balancer.lease_timeout_s)),
        key<Job>(machinery, number("heartbeat_s", 0.001, 1e6, "How often a loader says that it lives, in seconds."),
                 PENSTOCK_MEMBER(balancer.heartbeat_s)),
        key<Job>(machinery,
                 number("lost_after_s", 0.001, 1e6, "A loader silent for this long is given up, in seconds; a trainer's rank ends the job."),
                 PENSTOCK_MEMBER(balancer.lost_after_s)),
        key<Job>(machinery, text("log", {}, "File to record events and decisions in; empty: none."),
                 PENSTOCK_MEMBER(balancer.log))}});
  sections.push_back(
      {"mpi",
       "The mpi transport.",
       {key<Job>(machinery, integer("max_message_bytes", 4096, 2147483647, "Larger chunks travel in pieces."),
                 PENSTOCK_MEMBER(mpi.max_message_bytes)),
        key<Job>(machinery,
                 number("start_timeout_s", 1, 86400, "Longest wait of a rank for the others when MPI starts."),
                 PENSTOCK_MEMBER(mpi.start_timeout_s))}});
  sections.push_back(
      {"python",
       "Worker processes, for datasets and transforms written in Python.",
       {key<Job>(machinery,
                 text("interpreter", {},
                      "Python to run workers with; empty: the environment's PENSTOCK_PYTHON, else python3 from PATH."),
                 PENSTOCK_MEMBER(python.interpreter)),
        key<Job>(machinery, integer("workers", 0, 1024, "Workers per loader rank and split; 0: one for every thread."),
                 PENSTOCK_MEMBER(python.workers)),
        key<Job>(machinery,
                 number("timeout_s", 0.001, 1e6,
                        "Longest time for one sample, in seconds; then its worker is killed and the sample asked of a "
                        "new one."),
                 PENSTOCK_MEMBER(python.timeout_s)),
        key<Job>(machinery,
                 number("start_timeout_s", 0.001, 1e6,
                        "Longest time for a worker to import its modules and make the dataset, in seconds."),
                 PENSTOCK_MEMBER(python.start_timeout_s)),
        key<Job>(machinery,
                 integer("attempts", 1, 100, "Workers that one sample may cost a loader before it is given up."),
                 PENSTOCK_MEMBER(python.attempts))}});
  sections.push_back(
      {"limits",
       "What is refused in a sample before memory is taken for it.",
       {key<Job>(content, integer("max_pixels", 1, unbounded, "Pixels of an image."),
                 PENSTOCK_MEMBER(limits.max_pixels)),
        key<Job>(content, integer("max_encoded_bytes", 1, unbounded, "Bytes of a file."),
                 PENSTOCK_MEMBER(limits.max_encoded_bytes)),
        key<Job>(content, integer("max_side", 1, unbounded, "Width or height in pixels."),
                 PENSTOCK_MEMBER(limits.max_side)),
        key<Job>(content, integer("max_scans", 1, unbounded, "Scans of a progressive JPEG."),
                 PENSTOCK_MEMBER(limits.max_scans)),
        key<Job>(content, integer("max_warnings", 0, unbounded, "Warnings of the decoder before a file counts as bad."),
                 PENSTOCK_MEMBER(limits.max_warnings)),
        key<Job>(content,
                 integer("max_field_bytes", 1, 1 << 30,
                         "Bytes of a text or bytes field. Every sample has so much room for each in cells and slots."),
                 PENSTOCK_MEMBER(limits.max_field_bytes))}});
  sections.back().keys.back().sparse = true;
  return sections;
}

std::vector<Section<SplitSpec>> make_split_sections() {
  const auto content = Part::content;
  std::vector<Section<SplitSpec>> sections;
  sections.push_back(
      {"",
       "",
       {key<SplitSpec>(content,
                       text("mode", {"train", "eval"},
                            "train: padding is ordinary data, as in torch; eval: every sample counts exactly once."),
                       PENSTOCK_MEMBER(mode)),
        key<SplitSpec>(content, integer("batch_size", 1, 1048576, "Samples per batch and replica."),
                       PENSTOCK_MEMBER(batch_size)),
        key<SplitSpec>(content, boolean("drop_last", "BatchSampler's: leave out a last batch that is not full."),
                       PENSTOCK_MEMBER(drop_last)),
        key<SplitSpec>(content,
                       text("tail", {"torch", "pad", "drop"},
                            "The end of an epoch. torch: the two drop_last flags, per replica; pad, drop: to a "
                            "multiple of the global batch, so that the number of replicas may change in mid-epoch."),
                       PENSTOCK_MEMBER(tail)),
        key<SplitSpec>(content, boolean("channels_last", "Batches in NHWC memory order instead of NCHW."),
                       PENSTOCK_MEMBER(channels_last)),
        key<SplitSpec>(content,
                       number("cpu_fraction", 0, 1,
                              "With card_pipeline: share of the samples that pipeline makes, chosen by a draw for each "
                              "sample and epoch; card_pipeline makes the others."),
                       PENSTOCK_MEMBER(cpu_fraction))}});
  sections.back().keys.back().sparse = true;
  sections.push_back({"dataset",
                      "Where the samples come from.",
                      {key<SplitSpec>(content,
                                      text("folder", {},
                                           "Folder of class folders of JPEG and PNG files. A relative path is relative "
                                           "to the job file's folder; on the command line and in the environment, to "
                                           "the current one."),
                                      PENSTOCK_MEMBER(dataset.folder)),
                       key<SplitSpec>(content,
                                      text("images", {},
                                           "Instead of folder: folder of pictures without classes, at any depth, which "
                                           "have targets or masks. Relative as folder is."),
                                      PENSTOCK_MEMBER(dataset.images)),
                       key<SplitSpec>(content,
                                      text("targets", {},
                                           "With images: folder of what each should become, pictures of the same size "
                                           "and relative name; the batch's field 'target'."),
                                      PENSTOCK_MEMBER(dataset.targets)),
                       key<SplitSpec>(content,
                                      text("masks", {},
                                           "With images: folder of their masks, PNG files of class ids with the same "
                                           "size and relative name; the batch's field 'mask'."),
                                      PENSTOCK_MEMBER(dataset.masks)),
                       key<SplitSpec>(content,
                                      text("tar", {},
                                           "Instead of folder: WebDataset's tar shards, 'shards/{000..012}.tar'; "
                                           "braces, and '*' and '?' in the file's name. Relative as folder is."),
                                      PENSTOCK_MEMBER(dataset.tar)),
                       key<SplitSpec>(content, text("cifar10", {}, "Instead of folder: folder of CIFAR-10, binary version."),
                                      PENSTOCK_MEMBER(dataset.cifar10)),
                       key<SplitSpec>(content, text("cifar100", {}, "Instead of folder: folder of CIFAR-100, binary version."),
                                      PENSTOCK_MEMBER(dataset.cifar100)),
                       key<SplitSpec>(content, text("mnist", {}, "Instead of folder: folder of MNIST's idx files, or others like them."),
                                      PENSTOCK_MEMBER(dataset.mnist)),
                       key<SplitSpec>(content,
                                      text("list", {},
                                           "Instead of folder: a file of lines 'PATH LABEL'; paths relative to it."),
                                      PENSTOCK_MEMBER(dataset.list)),
                       key<SplitSpec>(content,
                                      text("csv", {},
                                           "Instead of folder: a CSV file whose first line names the columns; paths "
                                           "relative to it."),
                                      PENSTOCK_MEMBER(dataset.csv)),
                       key<SplitSpec>(content, text("mds", {}, "Instead of folder: folder of Mosaic's MDS shards (index.json)."),
                                      PENSTOCK_MEMBER(dataset.mds)),
                       key<SplitSpec>(content,
                                      text("tfrecord", {},
                                           "Instead of folder: TFRecord files of tf.train.Example, named as for tar."),
                                      PENSTOCK_MEMBER(dataset.tfrecord)),
                       key<SplitSpec>(content,
                                      text("parquet", {},
                                           "Instead of folder: Parquet files, named as for tar, whose samples `penstock "
                                           "index` has copied beside the index (which needs pyarrow)."),
                                      PENSTOCK_MEMBER(dataset.parquet)),
                       key<SplitSpec>(content,
                                      text("pack", {}, "Instead of folder: folder that `penstock pack` made of a data set."),
                                      PENSTOCK_MEMBER(dataset.pack)),
                       key<SplitSpec>(content, boolean("train", "With cifar10, cifar100 and mnist: the training part, else the test part."),
                                      PENSTOCK_MEMBER(dataset.train)),
                       key<SplitSpec>(content,
                                      text("image", {},
                                           "Which member (tar), column (csv, mds, parquet) or feature (tfrecord) is the picture. Default: "
                                           "the only picture, 'image', the only picture (parquet: or 'image'), 'image/encoded'."),
                                      PENSTOCK_MEMBER(dataset.image)),
                       key<SplitSpec>(content,
                                      text("label", {},
                                           "Which one is the label. Default: 'cls' (tar), 'label' (csv, mds, parquet), "
                                           "'image/class/label' (tfrecord), where there is one."),
                                      PENSTOCK_MEMBER(dataset.label)),
                       key<SplitSpec>(content,
                                      text("fields", {},
                                           "Further ones that a batch has, with ',' between them: members, columns, features; "
                                           "NAME:text and NAME:bytes for values of any length."),
                                      PENSTOCK_MEMBER(dataset.fields)),
                       key<SplitSpec>(content,
                                      text("index", {},
                                           "File that `penstock index` made of this data, read instead of looking through "
                                           "it. Relative as folder is."),
                                      PENSTOCK_MEMBER(dataset.index)),
                       key<SplitSpec>(content,
                                      text("python", {},
                                           "Instead of folder: a Python function or class 'package.module:name'; what "
                                           "it returns has __len__ and __getitem__."),
                                      PENSTOCK_MEMBER(dataset.python)),
                       key<SplitSpec>(content,
                                      ParamInfo{.name = "args",
                                                .kind = ParamKind::mapping,
                                                .doc = "Keyword arguments for the function that python names."},
                                      PENSTOCK_MEMBER(dataset.args)),
                       key<SplitSpec>(content,
                                      text("path", {},
                                           "Folders in which Python workers look for modules, with ':' between them; "
                                           "relative as folder is. Default, where Python is used: the job file's."),
                                      PENSTOCK_MEMBER(dataset.path)),
                       key<SplitSpec>(content,
                                      text("pickle", {},
                                           "Instead of folder: a pickled Python dataset as base64; written by "
                                           "penstock.DataLoader, not by hand."),
                                      PENSTOCK_MEMBER(dataset.pickle)),
                       key<SplitSpec>(content,
                                      text("main", {},
                                           "With pickle: the program whose __main__ has the classes, and its arguments; "
                                           "written by penstock.DataLoader, not by hand."),
                                      PENSTOCK_MEMBER(dataset.main))}});
  for (Key<SplitSpec>& one : sections.back().keys) one.sparse = true;
  for (const DatasetKind& kind : dataset_kinds) sections.back().one_of.push_back(kind.key);
  sections.push_back({"sampler",
                      "The order of the samples; torch's DistributedSampler, or RandomSampler for one replica.",
                      {key<SplitSpec>(content, boolean("shuffle", "A new order every epoch, torch's for the seed."),
                                      PENSTOCK_MEMBER(sampler.shuffle)),
                       key<SplitSpec>(content,
                                      boolean("drop_last",
                                              "DistributedSampler's: drop samples until the replicas get "
                                              "the same number, instead of repeating the first ones."),
                                      PENSTOCK_MEMBER(sampler.drop_last))}});
  const std::vector<Key<SplitSpec>> orders{
      key<SplitSpec>(content,
                     text("indices", {},
                          "File of indices, .npy or text with one a line: the order of every epoch, before tail and "
                          "replicas; with shuffle, torch's SubsetRandomSampler. Relative as dataset.folder is."),
                     PENSTOCK_MEMBER(sampler.indices)),
      key<SplitSpec>(content,
                     text("weights", {},
                          "File of weights, one for every sample of the dataset, .npy or text: torch's "
                          "WeightedRandomSampler. Relative as dataset.folder is."),
                     PENSTOCK_MEMBER(sampler.weights)),
      key<SplitSpec>(content,
                     integer("num_samples", 0, 281474976710656.0,
                             "With weights: samples drawn for an epoch; 0: as many as the dataset has."),
                     PENSTOCK_MEMBER(sampler.num_samples)),
      key<SplitSpec>(content, boolean("replacement", "With weights: has to be true."),
                     PENSTOCK_MEMBER(sampler.replacement)),
      key<SplitSpec>(content,
                     boolean("program",
                             "The program gives the order of every pass; written by "
                             "penstock.DataLoader(sampler=...), not by hand."),
                     PENSTOCK_MEMBER(sampler.program)),
      key<SplitSpec>(content,
                     text("file_hash", {},
                          "XXH3-128 of the numbers in the file that indices or weights name; filled in where the file "
                          "is read. Where it is given, the file must have it."),
                     PENSTOCK_MEMBER(sampler.file_hash)),
      key<SplitSpec>(content,
                     integer("file_count", 0, unbounded, "How many numbers that file holds; filled in as well."),
                     PENSTOCK_MEMBER(sampler.file_count))};
  for (Key<SplitSpec> one : orders) {
    one.sparse = true;
    sections.back().keys.push_back(std::move(one));
  }
  return sections;
}

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
                {"card_pipeline", "splits.NAME.card_pipeline"},
                {"card_transform", "splits.NAME.card_pipeline"},
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
