// What a user sees on every kind of mistake, to the character: the caret must stand below the culprit.
#include <doctest/doctest.h>

#include "runtime/job/suggest.h"
#include "tests/job/job_texts.h"

using namespace penstock;

namespace {
const std::string dataset = "    dataset: {folder: /d}\n";
const std::string pipeline = "    pipeline: [{Resize: {size: [8, 8]}}]\n";

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
}  // namespace

TEST_CASE("all complaints come in one go, each with its line and caret") {
  CHECK(complaint(
            "seed: lots\nloader:\n  thread: 4\n  prefetch: 0\n  memory_gb: yes\ntransport: tcp\n" +
            split_of(dataset + pipeline + "    batchsize: 256\n    sampler: {shuffle: yes}\n    mode: evaluate\n")) ==
        R"(job.yaml:1:7: error: 'seed': expected an integer, found the text 'lots'
    1 | seed: lots
      |       ^~~~
job.yaml:3:3: error: unknown key 'thread' in 'loader'
    3 |   thread: 4
      |   ^~~~~~ did you mean 'threads'?
job.yaml:4:13: error: 'loader.prefetch' is 0; it must be between 1 and 1024
    4 |   prefetch: 0
      |             ^
job.yaml:5:14: error: 'loader.memory_gb': expected a number, found the text 'yes'
    5 |   memory_gb: yes
      |              ^~~
job.yaml:6:12: error: 'transport': expected auto, inproc, shm or mpi, found the text 'tcp'
    6 | transport: tcp
      |            ^~~
job.yaml:11:5: error: unknown key 'batchsize' in 'splits.train'
   11 |     batchsize: 256
      |     ^~~~~~~~~ did you mean 'batch_size'?
job.yaml:12:24: error: 'splits.train.sampler.shuffle': expected true or false, found the text 'yes'
   12 |     sampler: {shuffle: yes}
      |                        ^~~ did you mean 'true'?
job.yaml:13:11: error: 'splits.train.mode': expected train or eval, found the text 'evaluate'
   13 |     mode: evaluate
      |           ^~~~~~~~
8 errors)");
}

TEST_CASE("values: type, range, choice") {
  CHECK(complaint(with_split("exif: false\n")).find("'exif' is of arithmetic: opencv, and arithmetic is exact") !=
        std::string::npos);
  CHECK(complaint(with_split("arithmetic: faster\n")) ==
        "job.yaml:1:13: error: 'arithmetic': expected exact, fast or opencv, found the text 'faster'\n"
        "    1 | arithmetic: faster\n"
        "      |             ^~~~~~ did you mean 'fast'?");
  CHECK(complaint(with_split("seed: -1\n")) ==
        "job.yaml:1:7: error: 'seed' is -1; it must be at least 0\n"
        "    1 | seed: -1\n"
        "      |       ^~");
  CHECK(complaint(with_split("on_error: fial\n")) ==
        "job.yaml:1:11: error: 'on_error': expected fail or substitute, found the text 'fial'\n"
        "    1 | on_error: fial\n"
        "      |           ^~~~ did you mean 'fail'?");
  CHECK(complaint(with_split("seed: 9223372036854775808\n")) ==
        "job.yaml:1:7: error: 'seed': expected an integer, found an integer that is too large\n"
        "    1 | seed: 9223372036854775808\n"
        "      |       ^~~~~~~~~~~~~~~~~~~");
  CHECK(complaint(with_split("roles: {trainers: \"2\"}\n")) ==
        "job.yaml:1:19: error: 'roles.trainers': expected an integer, found the text '2'\n"
        "    1 | roles: {trainers: \"2\"}\n"
        "      |                   ^~~ leave out the quotes");
  for (const std::string bad :
       {"010", "1_000", "0x10", "1.0", "1e3", "true", "[1]", "{a: 1}", "null", "", "--1", "+"}) {
    INFO(bad);
    CHECK(contains(complaint(with_split("seed: " + bad + "\n")), "'seed': expected an integer, found "));
  }
  for (const std::string bad : {".inf", "nan", ".nan", "inf", "1e999", "e5", ".", "1.2.3", "0x1p3", "01.5", "- 1"}) {
    INFO(bad);
    CHECK(complaint(with_split("loader: {memory_gb: " + bad + "}\n")) != "accepted");
  }
  CHECK(contains(complaint(with_split("limits: {max_side: 2147483648}\n")), "it must be between 1 and 2147483647"));
}

TEST_CASE("keys: unknown, misplaced, duplicate, missing") {
  CHECK(complaint(with_split("num_workers: 4\n")) ==
        "job.yaml:1:1: error: unknown key 'num_workers' at the top level\n"
        "    1 | num_workers: 4\n"
        "      | ^~~~~~~~~~~ did you mean 'loader.threads'?");
  CHECK(contains(complaint(with_split("batch_size: 4\n")), "did you mean 'splits.NAME.batch_size'?"));
  CHECK(contains(complaint(with_split("roles: {frobnicate: 4}\n")), "^~~~~~~~~~ known here: trainers"));
  CHECK(complaint(with_split("seed: 1\nseed: 2\n")) ==
        "job.yaml:2:1: error: duplicate key 'seed'\n"
        "    2 | seed: 2\n"
        "      | ^~~~ first given on line 1");
  CHECK(complaint(split_of(pipeline)) ==
        "job.yaml:2:3: error: missing required key 'folder' in 'splits.train.dataset'\n"
        "    2 |   train:\n"
        "      |   ^~~~~ or one of images, tar, cifar10, cifar100, mnist, list, csv, mds, tfrecord, parquet, pack, "
        "python and pickle");
  CHECK(complaint(split_of("    dataset: {}\n" + pipeline)) ==
        "job.yaml:3:5: error: missing required key 'folder' in 'splits.train.dataset'\n"
        "    3 |     dataset: {}\n"
        "      |     ^~~~~~~ or one of images, tar, cifar10, cifar100, mnist, list, csv, mds, tfrecord, parquet, pack, "
        "python and pickle");
  CHECK(complaint(split_of(dataset)) ==
        "job.yaml:2:3: error: missing required key 'pipeline' in 'splits.train'\n"
        "    2 |   train:\n"
        "      |   ^~~~~");
  CHECK(complaint("") ==
        "job.yaml:1:1: error: missing required key 'splits' at the top level\n"
        "    1 | \n"
        "      | ^ write splits: {train: {...}}");
}

TEST_CASE("shapes: what should be a mapping or a list") {
  CHECK(complaint(with_split("loader: 4\n")) ==
        "job.yaml:1:9: error: 'loader': expected a mapping of threads, prefetch, memory_gb, chunk_samples, "
        "payload_crc, chunk_buffers, cache_gb, spool_gb, "
        "read_ahead, read_ahead_mb, read_method, index_memory_mb, executor, gpus, gpu_memory_mb, gpu_duty, "
        "gpu_export_mb, gpu_links, nvjpeg, gpu_entropy and cpu_fraction, "
        "found the integer 4\n"
        "    1 | loader: 4\n"
        "      |         ^ write {threads: 4}");
  CHECK(complaint(split_of("    dataset: /data\n" + pipeline)) ==
        "job.yaml:3:14: error: 'splits.train.dataset': expected a mapping of folder, images, targets, masks, tar, "
        "cifar10, "
        "cifar100, mnist, list, csv, mds, tfrecord, parquet, pack, train, val_share, val_seed, image, label, fields, "
        "index, local, python, "
        "args, "
        "path, pickle and "
        "main, found the text '/data'\n"
        "    3 |     dataset: /data\n"
        "      |              ^~~~~ write {folder: /data}");
  CHECK(complaint(split_of(dataset + "    pipeline: {Resize: {size: 8}}\n")) ==
        "job.yaml:4:15: error: 'splits.train.pipeline': expected a list of transforms, found a mapping\n"
        "    4 |     pipeline: {Resize: {size: 8}}\n"
        "      |               ^~~~~~~~~~~~~~~~~~~ write [{RandomResizedCrop: {size: 224}}, ...]");
  CHECK(contains(complaint("- a\n"), "job.yaml:1:1: error: a job file is a mapping of keys, found a list"));
  CHECK(contains(complaint("splits:\n"), "'splits': expected a mapping of at least one split, found nothing"));
  CHECK(contains(complaint("splits: {}\n"), "'splits': expected a mapping of at least one split, found an empty one"));
  CHECK(contains(complaint("splits: {train: 3}\n"), "'splits.train': expected a mapping, found the integer 3"));
  CHECK(contains(complaint("splits: {tr ain: {}}\n"), "1:10: error: a split's name is made of letters"));
  CHECK(contains(complaint("splits: {../x: {}}\n"), "a split's name is made of letters"));
}

TEST_CASE("transforms") {
  CHECK(complaint(split_of(dataset + R"(    pipeline:
      - RandomResizedCrop:
        size: 224
      - HorizontalFlip
      - ToTensor
      - Resize: 224
      - Resize
      - RandomHorizontalFlip: {q: 1, p: 1.5}
      - RandomResizedCrop: {size: [1,2,3], interpolation: bicubik}
      - RandomResizedCrop: {size: 3, scale: [0.9, 0.1]}
      - [a]
)")) == R"(job.yaml:6:9: error: 'size' stands beside 'RandomResizedCrop'
    6 |         size: 224
      |         ^~~~ indent parameters further than the transform's name
job.yaml:7:9: error: unknown transform 'HorizontalFlip'
    7 |       - HorizontalFlip
      |         ^~~~~~~~~~~~~~ did you mean 'RandomHorizontalFlip'?
job.yaml:8:9: error: unknown transform 'ToTensor'
    8 |       - ToTensor
      |         ^~~~~~~~ did you mean {ToDtype: {dtype: float32, scale: true}}?
job.yaml:9:17: error: 'Resize': expected a mapping of its parameters, found the integer 224
    9 |       - Resize: 224
      |                 ^~~ write {Resize: {size: 224}}
job.yaml:10:9: error: 'Resize' needs 'size'
   10 |       - Resize
      |         ^~~~~~ write {Resize: {size: ...}}
job.yaml:11:32: error: unknown parameter 'q' of 'RandomHorizontalFlip'
   11 |       - RandomHorizontalFlip: {q: 1, p: 1.5}
      |                                ^ it takes p
job.yaml:11:41: error: 'splits.train.pipeline.5.RandomHorizontalFlip.p' is 1.5; it must be between 0 and 1
   11 |       - RandomHorizontalFlip: {q: 1, p: 1.5}
      |                                         ^~~
job.yaml:12:35: error: 'splits.train.pipeline.6.RandomResizedCrop.size': expected 1 or 2 values, found 3
   12 |       - RandomResizedCrop: {size: [1,2,3], interpolation: bicubik}
      |                                   ^~~~~~~
job.yaml:12:59: error: 'splits.train.pipeline.6.RandomResizedCrop.interpolation': expected nearest, bilinear or bicubic, found the text 'bicubik'
   12 |       - RandomResizedCrop: {size: [1,2,3], interpolation: bicubik}
      |                                                           ^~~~~~~ did you mean 'bicubic'?
job.yaml:13:45: error: 'RandomResizedCrop.scale': scale must be increasing
   13 |       - RandomResizedCrop: {size: 3, scale: [0.9, 0.1]}
      |                                             ^~~~~~~~~~
job.yaml:14:9: error: 'splits.train.pipeline.8': expected {Name: {parameters}}, found a list
   14 |       - [a]
      |         ^~~
11 errors)");
}

TEST_CASE("combinations: the finishing transforms, eval splits, tails, folders, heartbeats") {
  const std::string normalize = "{Normalize: {mean: [0, 0, 0], std: [1, 1, 1]}}";
  const auto of = [&](const std::string& list) {
    return complaint(split_of(dataset + "    pipeline: [" + list + "]\n"));
  };
  CHECK(of("{Resize: {size: 8}}, {ToDtype: {dtype: float32}}, " + normalize) == "accepted");
  CHECK(contains(of("{Resize: {size: 8}}, " + normalize),
                 "^~~~~~~~~ put {ToDtype: {dtype: float32, scale: true}} before it"));
  CHECK(contains(of("{ToDtype: {dtype: uint8}}, " + normalize), "Normalize needs float pixels"));
  CHECK(of("{ToDtype: {dtype: float16}}, {Resize: {size: 8}}") ==
        "job.yaml:4:46: error: 'Resize' stands after ToDtype\n"
        "    4 |     pipeline: [{ToDtype: {dtype: float16}}, {Resize: {size: 8}}]\n"
        "      |                                              ^~~~~~ ToDtype and Normalize come last");

  CHECK(complaint(
            split_of(dataset + pipeline +
                     "    mode: eval\n    tail: drop\n    drop_last: true\n    sampler:\n      drop_last: true\n")) ==
        R"(job.yaml:6:11: error: 'tail: drop' would leave samples out of an eval split
    6 |     tail: drop
      |           ^~~~ use 'pad' or 'torch'
job.yaml:7:16: error: 'drop_last' would leave samples out of an eval split
    7 |     drop_last: true
      |                ^~~~ leave it out
job.yaml:9:18: error: 'drop_last' would leave samples out of an eval split
    9 |       drop_last: true
      |                  ^~~~ leave it out
3 errors)");
  CHECK(complaint(split_of(dataset + pipeline + "    mode: eval\n    drop_last: false\n    tail: pad\n")) ==
        "accepted");
  CHECK(contains(complaint(split_of(dataset + pipeline + "    tail: pad\n    drop_last: true\n")),
                 "'drop_last' has no effect with 'tail: pad'"));
  CHECK(contains(complaint(split_of("    dataset: {folder: ~/data}\n" + pipeline)), "^~~~~~ write the whole path"));
  CHECK(contains(complaint(split_of("    dataset: {folder: ''}\n" + pipeline)),
                 "'splits.train.dataset.folder' is empty"));
  CHECK(contains(complaint(split_of(dataset + pipeline + "    batch_size: 0\n")), "between 1 and 1048576"));
  CHECK(contains(complaint(with_split("balancer: {heartbeat_s: 20}\n")),
                 "'balancer.lost_after_s' must be longer than 'balancer.heartbeat_s'"));
}

TEST_CASE("two lists of transforms: what each needs, and that both finish alike") {
  const std::string normalize = "{Normalize: {mean: [0, 0, 0], std: [1, 1, 1]}}";
  const std::string to_float = "{ToDtype: {dtype: float32}}";
  const auto of = [&](const std::string& first, const std::string& second, const std::string& more) {
    return complaint(split_of(dataset + "    pipeline: [{Resize: {size: 8}}" + first + "]\n    gpu_pipeline: [" +
                              second + "]\n" + more));
  };
  const std::string share = "    cpu_fraction: 0.3\n";
  CHECK(of(", " + to_float + ", " + normalize, "RandomHorizontalFlip, " + to_float + ", " + normalize, share) ==
        "accepted");
  CHECK(of("", "RandomHorizontalFlip", "    cpu_fraction: 0\n") == "accepted");
  CHECK(
      of("", "RandomHorizontalFlip", "") ==
      "job.yaml:5:19: error: 'gpu_pipeline' needs 'cpu_fraction' beside it\n"
      "    5 |     gpu_pipeline: [RandomHorizontalFlip]\n"
      "      |                   ^~~~~~~~~~~~~~~~~~~~~~ write cpu_fraction: 0.3 for three samples of ten to be made by "
      "'pipeline'");
  CHECK(contains(of("", "RandomHorizontalFlip", "    cpu_fraction: null\n"), "needs 'cpu_fraction'"));
  CHECK(contains(of("", "RandomHorizontalFlip", "    cpu_fraction: 30\n"), "it must be between 0 and 1"));
  CHECK(contains(of("", "Random", share), "5:20: error: unknown transform 'Random'"));
  CHECK(contains(complaint(split_of(dataset + pipeline + "    gpu_pipelin: []\n")), "did you mean 'gpu_pipeline'?"));
  CHECK(complaint(split_of(dataset + pipeline + share)) ==
        "job.yaml:5:19: error: 'cpu_fraction' shares the samples between 'pipeline' and 'gpu_pipeline', which is not "
        "given\n"
        "    5 |     cpu_fraction: 0.3\n"
        "      |                   ^~~ with one list it says who makes a sample and changes nothing in it: write "
        "loader.cpu_fraction");
  CHECK(contains(of(", " + to_float, "{Resize: {size: 8}}", share),
                 "5:19: error: 'gpu_pipeline' ends without the 'ToDtype' of 'pipeline'"));
  CHECK(of(", " + to_float, "{Resize: {size: 8}}, {ToDtype: {dtype: float16}}", share) ==
        "job.yaml:5:41: error: 'gpu_pipeline' ends otherwise than 'pipeline', from 'ToDtype' on\n"
        "    5 |     gpu_pipeline: [{Resize: {size: 8}}, {ToDtype: {dtype: float16}}]\n"
        "      |                                         ^~~~~~~~~~~~~~~~~~~~~~~~~~~ a batch has samples of both: let "
        "them end "
        "with the same ToDtype, Normalize, MixUp and CutMix");
  CHECK(contains(of(", " + to_float, to_float + ", " + normalize, share), "from 'Normalize' on"));
  CHECK(complaint(with_split("loader: {cpu_fraction: 0.5}\n")) == "accepted");
  CHECK(contains(complaint(with_split("loader: {cpu_fraction: 1.5}\n")), "it must be between 0 and 1"));
  CHECK(complaint(with_split("loader: {cpu_fraction: auto}\n")) == "accepted");
  CHECK(complaint(with_split("loader: {cpu_fraction: null}\n")) == "accepted");
  CHECK(contains(complaint(with_split("loader: {cpu_fraction: atuo}\n")),
                 "'loader.cpu_fraction': expected a number or auto, found the text 'atuo'"));
  CHECK(contains(complaint(with_split("loader: {cpu_fraction: atuo}\n")), "did you mean 'auto'?"));
  CHECK(contains(complaint(with_split("loader: {cpu_fraction: \"0.5\"}\n")), "leave out the quotes"));
  // A split's share is content, and nothing that speeds decide.
  CHECK(
      contains(of("", "RandomHorizontalFlip", "    cpu_fraction: auto\n"), "expected a number, found the text 'auto'"));
  CHECK(contains(complaint(with_split("cpu_percentage: 0.3\n")), "did you mean 'loader.cpu_fraction'?"));
  CHECK(contains(complaint(with_split("cpu_fraction: 0.3\n")), "did you mean 'loader.cpu_fraction'?"));
  CHECK(contains(complaint(with_split("gpu_pipeline: []\n")), "did you mean 'splits.NAME.gpu_pipeline'?"));
}

TEST_CASE("a key or section of the top level that is written in a split") {
  const std::string split = "    dataset: {folder: data}\n    pipeline: [{CenterCrop: {size: 8}}]\n    batch_size: 2\n";
  for (const char* key : {"seed: 3", "transport: shm", "loader: {threads: 2}", "limits: {max_side: 9}"}) {
    CHECK(contains(complaint(split_of(split + "    " + key + "\n")), "it stands at the top level"));
  }
}

TEST_CASE("syntax errors look the same and name the likely cause") {
  CHECK(complaint(with_split("loader:\n\tthreads: 3\n")) ==
        "job.yaml:2:9: error: not valid YAML: illegal map value\n"
        "    2 | \tthreads: 3\n"
        "      | \t       ^ indent with spaces: YAML allows no tabs there");
  CHECK(complaint("seed: [1, 2\nsplits: x\n") ==
        "job.yaml:2:7: error: not valid YAML: end of sequence flow not found\n"
        "    2 | splits: x\n"
        "      |       ^ inside '[' of line 1");
  CHECK(complaint(with_split("name: 'open\n")) ==
        "job.yaml:1:7: error: not valid YAML: this quote is never closed\n"
        "    1 | name: 'open\n"
        "      |       ^");
  CHECK(complaint(with_split("name: 'it''s' # 'fine\n")) == "accepted");
  CHECK(complaint(with_split("name: \"a \\\" b\"\n")) == "accepted");
  CHECK(complaint(with_split("") + "---\nseed: 1\n") ==
        "job.yaml:3:1: error: a second document\n"
        "    3 | seed: 1\n"
        "      | ^ a job file is one YAML document");
  CHECK(contains(complaint(with_split("? [a]\n: 1\n")), "job.yaml:1:3: error: a key must be text"));
}

TEST_CASE("carets stand right below tabs, accents, wide letters and in long lines") {
  CHECK(complaint(with_split("roles: {\ttrainers: x}\n")) ==
        "job.yaml:1:20: error: 'roles.trainers': expected an integer, found the text 'x'\n"
        "    1 | roles: {\ttrainers: x}\n"
        "      |         \t          ^");
  CHECK(complaint(with_split("{name: \"caf\u00e9 \u65e5\u672c\", seed: x,\n") + "}") != "accepted");
  // Columns count characters, the caret counts columns of the terminal: a wide letter takes two.
  CHECK(
      complaint(
          "{name: \"\u00e9\u65e5\", seed: x, splits: {t: {dataset: {folder: /d}, pipeline: [RandomVerticalFlip]}}}") ==
      "job.yaml:1:20: error: 'seed': expected an integer, found the text 'x'\n"
      "    1 | {name: \"\u00e9\u65e5\", seed: x, splits: {t: {dataset: {folder: /d}, pipeline: "
      "[RandomVerticalFlip]}}}\n"
      "      |                     ^");
  const std::string far =
      complaint(with_split("roles: {" + std::string(200, ' ') + "trainers: x" + std::string(300, ' ') + "}\n"));
  CHECK(contains(far, "job.yaml:1:219: error"));
  const size_t line = far.find("1 | ...");
  const size_t carets = far.find("  | ", line);
  REQUIRE(line != std::string::npos);
  // The caret has the same column as the x.
  CHECK(far.find("trainers: x") + 10 - (line - 4) == far.find('^') - (carets - 4));
  CHECK(far.size() < 600);
}

TEST_CASE("nothing that a file holds reaches the terminal raw") {
  CHECK(contains(complaint(with_split("name: \x1b[31m\n")), "a control character"));
  CHECK(!contains(complaint(with_split("name: \x1b[31m\n")), "\x1b"));
  CHECK(contains(complaint(with_split("name: \xff\n")), "job.yaml:1:7: error: not UTF-8 text"));
  CHECK(!contains(complaint(with_split("\"a\\eb\": 1\n")), "\x1b"));  // an escape in a quoted key
  CHECK(complaint(with_split("seed: " + std::string(100000, 'x') + "\n")).size() < 1000);
}

TEST_CASE("overrides point into themselves") {
  CHECK(complaint(good_job, {"splits.train.batchsize=32"}) ==
        "command line: error: unknown key 'batchsize' in 'splits.train'\n"
        "      | splits.train.batchsize=32\n"
        "      |              ^~~~~~~~~ did you mean 'batch_size'?");
  CHECK(complaint(good_job, {"loader.threads=lots", "splits.trian.batch_size=4"}) ==
        "command line: error: 'loader.threads': expected an integer, found the text 'lots'\n"
        "      | loader.threads=lots\n"
        "      |                ^~~~\n"
        "command line: error: there is no split 'trian'\n"
        "      | splits.trian.batch_size=4\n"
        "      |        ^~~~~ did you mean 'train'?\n"
        "2 errors");
  CHECK(contains(complaint(good_job, {"seed"}),
                 "command line: error: expected key=value\n      | seed\n      | ^~~~ as in"));
  CHECK(contains(complaint(good_job, {"=3"}), "expected a key"));
  CHECK(contains(complaint(good_job, {"a..b=1"}), "      | a..b=1\n      |   ^ as in"));
  CHECK(contains(complaint(good_job, {"seed.x=2"}), "'seed' has no keys: it is the integer 7"));
  CHECK(contains(complaint(good_job, {"loader.prefetch="}), "expected an integer, found nothing"));
  CHECK(contains(complaint(good_job, {"loader.threads= [1"}), "not valid YAML"));
  CHECK(contains(complaint(good_job, {"splits.train.pipeline.9.p=1"}), "^ the list has 4, counted from 0"));
  CHECK(
      contains(complaint(good_job, {"splits.train.pipeline.Normalise.std=1"}), "^~~~~~~~~ did you mean 'Normalize'?"));
  CHECK(contains(complaint(good_job, {"splits.train.pipeline=[RandomVerticalFlip, RandomVerticalFlip]",
                                      "splits.train.pipeline.RandomVerticalFlip.p=1"}),
                 "is in the list more than once"));
}

TEST_CASE("environment variables point into themselves; the file comes first, the command line last") {
  CHECK(complaint(with_split("seed: x\n"), {"seed=y", "loader.threads=y"},
                  {{"PENSTOCK_CFG__ROLES__TRAINER", "1"}, {"PENSTOCK_CFG_SEED", "3"}}) ==
        "environment: error: a variable that sets nothing\n"
        "      | PENSTOCK_CFG_SEED=3\n"
        "      | ^~~~~~~~~~~~~~~~~ its name must begin with PENSTOCK_CFG__, as in PENSTOCK_CFG__LOADER__THREADS\n"
        "environment: error: unknown key 'trainer' in 'roles'\n"
        "      | PENSTOCK_CFG__ROLES__TRAINER=1\n"
        "      |                      ^~~~~~~ did you mean 'trainers'?\n"
        "command line: error: 'seed': expected an integer, found the text 'y'\n"
        "      | seed=y\n"
        "      |      ^\n"
        "command line: error: 'loader.threads': expected an integer, found the text 'y'\n"
        "      | loader.threads=y\n"
        "      |                ^\n"
        "4 errors");
}

TEST_CASE("more complaints than anybody reads are counted") {
  std::string many;
  for (int i = 0; i < 80; ++i) many += "key" + std::to_string(i) + ": 1\n";
  const std::string text = complaint(with_split(many));
  CHECK(text.ends_with("\n... and 30 more\n80 errors"));
}

TEST_CASE("data sets in files: one kind, what belongs to it, paths, fields") {
  const auto said = [&](const std::string& words) {
    return complaint(split_of("    dataset: {" + words + "}\n" + pipeline));
  };
  CHECK(said("tar: \"s-{000..012}.tar\", image: jpg, label: cls, fields: \"box, caption:text\", index: x.index") ==
        "accepted");
  CHECK(said("cifar10: c, train: false") == "accepted");
  CHECK(contains(said("tar: a.tar, folder: /d"), "a dataset has one of folder, images, tar, cifar10"));
  CHECK(said("folder: /d, val_share: 0.2, val_seed: 3, train: false") == "accepted");
  CHECK(contains(said("tar: /d.tar, val_share: 0.2"), "'val_share' belongs to folder, and none of them is given"));
  CHECK(said("folder: /d, val_share: 0.2, index: /x") == "accepted");
  CHECK(contains(said("folder: /d, val_share: 0, train: false"), "'val_share' is 0, so there is no part"));
  CHECK(contains(said("folder: /d, val_share: 1.5"), "val_share"));
  CHECK(contains(said("folder: /d, train: false"),
                 "'train' belongs to cifar10, cifar100, mnist and val_share, and none of them is given"));
  CHECK(contains(said("cifar10: c, label: x"), "'label' belongs to tar, csv, mds, tfrecord and parquet"));
  CHECK(contains(said("python: \"a:b\", index: x"), "'index' belongs to folder, tar"));
  CHECK(said("tar: t.tar, index: x, local: true") == "accepted");
  CHECK(said("pack: p, local: true") == "accepted");
  CHECK(said("folder: f, local: false") == "accepted");
  CHECK(contains(said("folder: f, local: true"), "'local' needs 'index', or a 'pack'"));
  CHECK(said("parquet: \"t-*.parquet\", image: picture, fields: \"caption\", index: x.index") == "accepted");
  CHECK(contains(said("parquet: x"), "'parquet' needs 'index'"));
  CHECK(contains(said("parquet: x"), "run `penstock index` once"));
  CHECK(contains(said("tfrecords: x"), "did you mean 'tfrecord'?"));
  CHECK(contains(said("tar: ''"), "'splits.train.dataset.tar' is empty"));
  CHECK(contains(said("tar: ~/x.tar"), "'~' does not stand for the home folder"));
  CHECK(contains(said("csv: x, fields: \"a,,b\""), "has an empty name in it"));
  CHECK(contains(said("csv: x, fields: \"a,a:text\""), "a batch cannot have two fields 'a'"));
  CHECK(contains(said("csv: x, fields: label"), "a batch cannot have two fields 'label'"));
  CHECK(contains(said("csv: x, fields: \"a:word\""), "'word' is no kind of field"));
  const std::string file = split_of("    dataset: {folder: /d, index: /i}\n" + pipeline);
  for (const char* override : {"splits.train.dataset={pack: p}", "splits.train.dataset.pack=p"}) {
    CHECK(contains(complaint(file, {override}), "splits.train.dataset=null splits.train.dataset.pack=…"));
  }
  CHECK(complaint(file, {"splits.train.dataset=null", "splits.train.dataset.pack=p"}) == "accepted");
  CHECK(contains(said("tar: a.tar, folder: /d"), "leave out the others"));
  const Job job =
      parse_job(split_of("    dataset: {tar: \"../s-{0..1}.tar\", index: x.index}\n" + pipeline), "/j/a/job.yaml");
  CHECK(job.splits.at("train").dataset.tar == "/j/s-{0..1}.tar");
  CHECK(job.splits.at("train").dataset.index == "/j/a/x.index");
}

TEST_CASE("a file of bytes that are no text is complained of like any other") {
  // Found by fuzz_job: a long run of bytes that only continue a character.
  for (const size_t length : {10U, 100U, 140U, 1000U, 5000U}) {
    for (const char byte : {'\x80', '\xBF', '\xFF'}) {
      INFO(length);
      CHECK(contains(complaint("seed: " + std::string(length, byte) + "\n"), "job.yaml:1:"));
      CHECK(contains(complaint(std::string(length, byte) + "seed\n"), "job.yaml:1:"));
      CHECK(contains(complaint(std::string(length, 'a') + std::string(length, byte) + std::string(length, 'b')),
                     "job.yaml:1:"));
    }
  }
}

TEST_CASE("suggestions") {
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("ab", "ba") == 1);  // a swap
  CHECK(suggest("batchsize", {"tail", "batch_size"}) == "batch_size");
  CHECK(suggest("BATCH-SIZE", {"tail", "batch_size"}) == "batch_size");
  CHECK(suggest("randomresizedcrop", {"RandomCrop", "RandomResizedCrop"}) == "RandomResizedCrop");
  CHECK(suggest("x", {"p", "q"}).empty());
  CHECK(suggest("wholly_different", {"tail", "mode"}).empty());
  CHECK(suggest(std::string(100000, 'a'), {"tail"}).empty());
  CHECK(list_of({"a", "b", "c"}, "or") == "a, b or c");
}
