// What a good job file means, where values come from, and what `config show` prints.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/job/job_texts.h"

using namespace penstock;

TEST_CASE("every key of the documented job file arrives") {
  const Job job = parse_job(good_job, "/jobs/job.yaml");
  CHECK(job.seed == 7);
  CHECK(job.on_error == OnError::substitute);
  CHECK(job.roles.trainers == 2);
  CHECK(job.loader.threads == 3);
  CHECK(job.loader.prefetch == 4);
  CHECK(job.loader.memory_gb == 1.5);
  CHECK(job.transport == TransportChoice::shm);
  CHECK(job.path == "/jobs/job.yaml");
  REQUIRE(job.splits.size() == 2);
  const SplitSpec& train = job.splits.at("train");
  CHECK(train.mode == Mode::train);
  CHECK(train.batch_size == 64);
  CHECK(train.sampler.shuffle);
  CHECK(train.tail == Tail::torch);
  REQUIRE(train.pipeline.size() == 4);
  CHECK(train.pipeline[0].name == "RandomResizedCrop");
  CHECK(std::get<std::vector<double>>(train.pipeline[0].params.at("size")) == std::vector<double>{224});
  CHECK(std::get<std::string>(train.pipeline[0].params.at("interpolation")) == "bilinear");  // a default
  CHECK(train.pipeline[1].name == "RandomHorizontalFlip");                                   // its bare name
  CHECK(std::get<double>(train.pipeline[1].params.at("p")) == 0.5);
  CHECK(std::get<bool>(train.pipeline[2].params.at("scale")));
  CHECK(std::get<std::vector<double>>(train.pipeline[3].params.at("mean"))[2] == 0.406);
  const SplitSpec& val = job.splits.at("val");
  CHECK(val.mode == Mode::eval);
  CHECK(val.tail == Tail::pad);
  CHECK(std::holds_alternative<std::monostate>(val.pipeline[0].params.at("max_size")));
}

TEST_CASE("what is not given has the default of job.h, and empty sections are allowed") {
  const Job job = parse_job(with_split("loader:\n"), "job.yaml");
  const Job defaults;
  CHECK(job.seed == defaults.seed);
  CHECK(job.loader.threads == defaults.loader.threads);
  CHECK(job.limits == defaults.limits);
  CHECK(job.transport == TransportChoice::automatic);
  CHECK(job.mpi.max_message_bytes == defaults.mpi.max_message_bytes);
  CHECK(job.splits.at("train").batch_size == 1);
}

TEST_CASE("the rarer keys") {
  const Job job = parse_job(
      with_split("name: résumé\nloader: {chunk_samples: 8, chunk_buffers: 5, read_ahead: 7, read_ahead_mb: 1.5, "
                 "read_method: threads, index_memory_mb: 2.5, executor: gpu, gpus: 2, gpu_memory_mb: 64, gpu_duty: "
                 "0.5, gpu_export_mb: 16.5, gpu_links: nccl, nvjpeg: nearest, gpu_entropy: index, cpu_fraction: "
                 "0.25}\ntrainer: {hold: 1, timeout_s: 2.5, grace_s: 1}\n"
                 "balancer: {policy: random, lease_timeout_s: 3, heartbeat_s: .1, lost_after_s: 1e0, log: ev.log}\n"
                 "bad_samples: {max_fraction: 0.5, max_count: 3}\narithmetic: exact\nmpi: {max_message_bytes: 65536}\n"
                 "limits: {max_pixels: 1000, max_encoded_bytes: 2000, max_side: 30, max_scans: 4, max_warnings: 5}\n"),
      "job.yaml");
  CHECK(job.name == "résumé");
  CHECK(job.loader.chunk_samples == 8);
  CHECK(job.loader.chunk_buffers == 5);
  CHECK(job.loader.read_ahead == 7);
  CHECK(job.loader.read_ahead_mb == 1.5);
  CHECK(job.loader.read_method == ReadMethod::threads);
  CHECK(job.loader.index_memory_mb == 2.5);
  CHECK(job.loader.executor == ExecutorKind::gpu);
  CHECK(job.loader.gpus == 2);
  CHECK(job.loader.gpu_memory_mb == 64);
  CHECK(job.loader.gpu_duty == 0.5);
  CHECK(job.loader.gpu_export_mb == 16.5);
  CHECK(job.loader.gpu_links == GpuLinksKind::nccl);
  CHECK(job.loader.nvjpeg == NvjpegUse::nearest);
  CHECK(job.loader.gpu_entropy == GpuEntropyKind::index);
  CHECK(job.loader.cpu_fraction == 0.25);
  CHECK(parse_job(with_split("loader: {cpu_fraction: auto}\n"), "job.yaml").loader.cpu_fraction ==
        CpuFraction::automatic());
  CHECK(!parse_job(with_split("loader: {cpu_fraction: null}\n"), "job.yaml").loader.cpu_fraction.given());
  CHECK(job.trainer.hold == 1);
  CHECK(job.trainer.timeout_s == 2.5);
  CHECK(job.balancer.policy == GrantPolicy::random);
  CHECK(job.balancer.heartbeat_s == 0.1);
  CHECK(job.balancer.lost_after_s == 1.0);
  CHECK(job.balancer.log == "ev.log");
  CHECK(job.bad_samples.max_fraction == 0.5);
  CHECK(job.mpi.max_message_bytes == 65536);
  CHECK(job.limits.max_side == 30);
  CHECK(job.limits.max_warnings == 5);
}

TEST_CASE("folders: relative to the job file, or to the current folder on the command line") {
  const std::string here = std::filesystem::current_path().string();
  const auto folder = [&](const Job& job) { return job.splits.at("train").dataset.folder; };
  CHECK(folder(parse_job(good_job, "/jobs/a/job.yaml")) == "/jobs/a/photos/train");
  CHECK(folder(parse_job(good_job, "configs/job.yaml")) == here + "/configs/photos/train");
  CHECK(folder(parse_job(good_job, "/j/job.yaml", {"splits.train.dataset.folder=../x/"})) ==
        (std::filesystem::path(here).parent_path() / "x").string());
  CHECK(folder(parse_job(good_job, "/j/job.yaml", {"splits.train.dataset.folder=/abs/./y"})) == "/abs/y");
}

TEST_CASE("overrides: the command line over the environment over the file") {
  const std::map<std::string, std::string> environment{
      {"PENSTOCK_CFG__SPLITS__TRAIN__BATCH_SIZE", "16"}, {"PENSTOCK_CFG__LOADER__THREADS", "9"}, {"HOME", "/root"}};
  const Job job =
      parse_job(good_job, "job.yaml", {"splits.train.batch_size=8", "splits.train.batch_size=4"}, environment);
  CHECK(job.splits.at("train").batch_size == 4);
  CHECK(job.loader.threads == 9);
  CHECK(job.loader.prefetch == 4);  // the rest of the section stays
}

TEST_CASE("overrides: mappings merge, lists are replaced, transforms are found by name or number") {
  const Job job =
      parse_job(good_job, "job.yaml",
                {"loader={threads: 1, chunk_buffers: 3}", "splits.train.pipeline.RandomResizedCrop.size=[192, 160]",
                 "splits.train.pipeline.1.RandomHorizontalFlip.p=1", "splits.val.pipeline=[{Resize: {size: 32}}]"});
  CHECK(job.loader.threads == 1);
  CHECK(job.loader.prefetch == 4);
  CHECK(job.loader.chunk_buffers == 3);
  const auto& train = job.splits.at("train").pipeline;
  CHECK(std::get<std::vector<double>>(train[0].params.at("size")) == std::vector<double>{192, 160});
  CHECK(std::get<double>(train[1].params.at("p")) == 1.0);
  CHECK(std::get<std::vector<double>>(job.splits.at("val").pipeline[0].params.at("size")) == std::vector<double>{32});
}

TEST_CASE("overrides: environment names match whatever case the file has") {
  const std::string text =
      split_of("    dataset: {folder: /d}\n    pipeline: [{Resize: {size: 8}}, RandomVerticalFlip]\n");
  const Job job = parse_job("splits:\n  Train_A:\n" + text.substr(text.find("    dataset")), "job.yaml", {},
                            {{"PENSTOCK_CFG__SPLITS__TRAIN_A__BATCH_SIZE", "5"},
                             {"PENSTOCK_CFG__SPLITS__TRAIN_A__PIPELINE__RANDOMVERTICALFLIP__P", "0.25"},
                             {"PENSTOCK_CFG__MPI__MAX_MESSAGE_BYTES", "4096"}});
  CHECK(job.splits.at("Train_A").batch_size == 5);
  CHECK(std::get<double>(job.splits.at("Train_A").pipeline[1].params.at("p")) == 0.25);
  CHECK(job.mpi.max_message_bytes == 4096);
}

TEST_CASE("a job may come from overrides alone") {
  const Job job = parse_job("", "job.yaml", {"splits.a.dataset.folder=/d", "splits.a.pipeline=[{Resize: {size: 4}}]"});
  CHECK(job.splits.at("a").dataset.folder == "/d");
}

TEST_CASE("line ends, byte order marks and unusual writing") {
  std::string windows = "\xEF\xBB\xBF";
  for (const char* c = good_job; *c != '\0'; ++c) windows += *c == '\n' ? std::string("\r\n") : std::string(1, *c);
  CHECK(parse_job(windows, "job.yaml").splits.at("val").batch_size == 32);
  CHECK(parse_job(with_split("seed: +5\n"), "j").seed == 5);
  CHECK(parse_job(with_split("seed: 9223372036854775807\n"), "j").seed == 9223372036854775807u);
  CHECK(parse_job(with_split("name: 2024\n"), "j").name == "2024");
  CHECK(parse_job(with_split("name: 'true'\n"), "j").name == "true");
  // JSON is YAML.
  CHECK(parse_job(R"({"seed": 3, "splits": {"t": {"dataset": {"folder": "/d"}, "pipeline": ["RandomVerticalFlip"]}}})",
                  "j")
            .seed == 3);
}

TEST_CASE("show: reads back to the same job, and says where every value comes from") {
  const std::map<std::string, std::string> environment{{"PENSTOCK_CFG__LOADER__CHUNK_BUFFERS", "12"}};
  const std::string shown = show_job_text(good_job, "/j/job.yaml", {"seed=1"}, environment, true);
  const auto has = [&](const std::string& line) { return shown.find(line + "\n") != std::string::npos; };
  INFO(shown);
  CHECK(has("seed: 1                                 # command line"));
  CHECK(has("on_error: substitute                    # /j/job.yaml:2"));
  CHECK(has("arithmetic: exact                       # default"));
  CHECK(has("  chunk_buffers: 12                     # environment PENSTOCK_CFG__LOADER__CHUNK_BUFFERS"));
  CHECK(has("      folder: /j/photos/train           # /j/job.yaml:9"));
  CHECK(has("      - RandomHorizontalFlip:           # /j/job.yaml:12"));
  CHECK(has("          p: 0.5                        # default"));
  CHECK(has("          size: 224                     # /j/job.yaml:11"));
  CHECK(has("          mean: [0.485, 0.456, 0.406]   # /j/job.yaml:14"));

  const Job job = parse_job(good_job, "/j/job.yaml", {"seed=1"}, environment);
  for (const bool with_origin : {true, false}) {
    const std::string text = show_job_text(good_job, "/j/job.yaml", {"seed=1"}, environment, with_origin);
    CHECK((text.find('#') != std::string::npos) == with_origin);
    const Job again = parse_job(text, "/elsewhere/job.yaml");
    for (const char* split : {"train", "val"}) {
      CHECK(canonical_json(resolve_split(again, split)) == canonical_json(resolve_split(job, split)));
    }
    CHECK(again.loader.chunk_buffers == 12);
    CHECK(again.loader.memory_gb == 1.5);
    CHECK(show_job_text(text, "/e/job.yaml", {}, {}, false) ==
          show_job_text(good_job, "/j/job.yaml", {"seed=1"}, environment, false));
  }
}

TEST_CASE("show: text that only looks like something else is quoted") {
  for (const std::string name :
       {"true", "5", "null", "a b", "x: y", "#", "", "tab\there", "quote\"'", "1e5", "-", "ü"}) {
    const std::string shown = show_job_text(with_split(""), "/j", {}, {{"PENSTOCK_CFG__NAME", "'placeholder'"}}, false);
    const size_t at = shown.find("placeholder");
    REQUIRE(at != std::string::npos);
    std::string quoted;  // single-quoted YAML: only the quote itself is doubled
    for (const char c : name) quoted += c == '\'' ? std::string("''") : std::string(1, c);
    const std::string text = with_split("name: '" + quoted + "'\n");
    INFO(text);
    CHECK(parse_job(show_job_text(text, "/j", {}, {}, true), "/j").name == name);
  }
}

TEST_CASE("load_job and show_job read files and this process's environment") {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("penstock_config_test_" + std::to_string(std::rand()));
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "job.yaml").string();
  std::ofstream(path) << good_job;
  setenv("PENSTOCK_CFG__LOADER__THREADS", "11", 1);
  const Job job = load_job(path, {"seed=3"});
  const std::string shown = show_job(path, {}, true);
  unsetenv("PENSTOCK_CFG__LOADER__THREADS");
  CHECK(job.loader.threads == 11);
  CHECK(job.seed == 3);
  CHECK(job.splits.at("train").dataset.folder == (folder / "photos/train").string());
  CHECK(shown.find("# environment PENSTOCK_CFG__LOADER__THREADS") != std::string::npos);

  CHECK_THROWS_WITH_AS(load_job(folder.string()), doctest::Contains("it is a folder"), Error);
  CHECK_THROWS_WITH_AS(load_job((folder / "none.yaml").string()), doctest::Contains("No such file or directory"),
                       Error);
  std::ofstream(path) << std::string((size_t{1} << 20) + 1, ' ');
  CHECK_THROWS_WITH_AS(load_job(path), doctest::Contains("larger than 1 MiB"), Error);
  std::filesystem::remove_all(folder);
}
