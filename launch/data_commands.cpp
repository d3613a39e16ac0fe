// `penstock init` and `penstock demo-data`: from nothing, or a folder of photos, to a job file that runs.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "launch/command.h"
#include "launch/dataset_given.h"
#include "launch/demo_data.h"
#include "launch/init_job.h"
#include "runtime/base/error.h"
#include "runtime/datasets/image_folder.h"
#include "runtime/datasets/pack_format.h"
#include "runtime/decode/image.h"

namespace penstock {

void add_init(CLI::App& app, Chosen& chosen) {
  CLI::App* command =
      app.add_subcommand("init", "write an annotated job file for a folder of photos, or a pack, to stdout");
  auto train = std::make_shared<std::string>();
  auto val = std::make_shared<std::string>();
  command->add_option("--data", *train, "training photos, one folder a class; or a pack")->required()->type_name("DIR");
  command->add_option("--val", *val, "validation photos, the same classes")->type_name("DIR");
  auto share = std::make_shared<double>(0);
  command->add_option("--val-share", *share, "or this share of each class of the one folder, held out by a seed: 0.2")
      ->check(CLI::Range(0.001, 0.99).description(""))
      ->excludes("--val");
  command->callback([=, &chosen] {
    chosen.run = [=] {
      const auto data = [](const std::string& folder) -> InitData {
        if (folder.empty()) return {};
        const bool pack = is_pack(folder);
        // A job for a folder without pictures would fail at its first run: say so now, before there is a file.
        if (!pack) refuse_splits_as_classes(folder);
        if (!pack) ImageFolder(folder, DecodeLimits{}.max_encoded_bytes, posix_file_system());
        if (pack) (void)open_pack_table(folder, posix_file_system());  // refuses one that is not finished
        // The file may be saved anywhere, and relative folders in it would count from there.
        return {std::filesystem::absolute(folder).lexically_normal().string(), pack};
      };
      if (std::isnan(*share)) throw Error(ErrorKind::usage, "--val-share nan is no share", "0.2 is a fifth");
      const InitData from = data(*train);
      if (from.pack && *share > 0) {
        throw Error(ErrorKind::usage, "--val-share holds out pictures of class folders, and '" + *train + "' is a pack",
                    "pack the two parts apart");
      }
      std::fputs(init_job(from, data(*val), *share).c_str(), stdout);
      return 0;
    };
  });
}

void add_demo_data(CLI::App& app, Chosen& chosen) {
  CLI::App* command = app.add_subcommand("demo-data", "make photo-like JPEGs in class folders");
  auto options = std::make_shared<DemoDataOptions>();
  command->add_option("dir", options->folder, "folder to fill: DIR/train and DIR/val")->required()->type_name("DIR");
  command->add_option("--count", options->count, "training pictures")->capture_default_str();
  command->add_option("--val-count", options->val_count, "validation pictures; 0: none")->capture_default_str();
  command->add_option("--classes", options->classes, "classes")->capture_default_str();
  command->add_option("--seed", options->seed, "which pictures")->capture_default_str();
  auto subsampling = std::make_shared<std::string>("mixed");
  command->add_option("--subsampling", *subsampling, "of all pictures with colour: mixed, 4:2:0 or 4:4:4")
      ->capture_default_str()
      ->check(CLI::IsMember({"mixed", "4:2:0", "4:4:4"}).description(""));
  auto sizes = std::make_shared<std::pair<int, int>>(0, 0);
  command->add_option("--megapixels", *sizes, "large photos, of this size to that, as in: --megapixels 2 24")
      ->type_name("MIN MAX")
      ->check(CLI::Range(1, 100).description(""));
  command->add_option("--threads", options->threads, "0: one per core")->capture_default_str();
  command->callback([=, &chosen] {
    chosen.run = [=] {
      if (::isatty(STDERR_FILENO)) {
        options->progress = [](int64_t done, int64_t total) {
          std::fprintf(stderr, "\r\033[K%lld of %lld pictures", static_cast<long long>(done),
                       static_cast<long long>(total));
        };
      }
      if (*subsampling == "4:2:0") options->kind.subsampling = DemoSubsampling::chroma_420;
      if (*subsampling == "4:4:4") options->kind.subsampling = DemoSubsampling::chroma_444;
      options->kind.min_megapixels = sizes->first;
      options->kind.max_megapixels = sizes->second;
      const DemoDataResult result = make_demo_data(*options);
      std::fprintf(stderr, "%s%s: %lld pictures made (%.1f MB), %lld were there\n", options->progress ? "\r\033[K" : "",
                   options->folder.c_str(), static_cast<long long>(result.made),
                   static_cast<double>(result.bytes) / 1e6, static_cast<long long>(result.reused));
      return 0;
    };
  });
}

}  // namespace penstock
