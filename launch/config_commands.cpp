// `penstock config show` and `penstock schema`: the job as it will be understood, and the schema for editors.
#include <cstdio>

#include "launch/command.h"
#include "runtime/job/cluster.h"
#include "runtime/job/job.h"

namespace penstock {

void add_config(CLI::App& app, Chosen& chosen) {
  CLI::App* config = app.add_subcommand("config", "look at a job file as penstock understands it");
  config->require_subcommand(1);
  CLI::App* show = config->add_subcommand("show", "print the job with all defaults and overrides");
  auto arguments = std::make_shared<JobArguments>();
  auto origin = std::make_shared<bool>(false);
  add_job_arguments(*show, *arguments);
  show->add_flag("--origin", *origin, "say where each value comes from");
  show->callback([=, &chosen] {
    chosen.run = [=] {
      std::fputs(show_job(arguments->file, arguments->overrides, *origin).c_str(), stdout);
      return 0;
    };
  });
}

void add_schema(CLI::App& app, Chosen& chosen) {
  CLI::App* schema =
      app.add_subcommand("schema", "print the JSON Schema of job files, or of cluster files, for editors");
  auto cluster = std::make_shared<bool>(false);
  schema->add_flag("--cluster", *cluster, "of cluster files, which `penstock plan` reads");
  schema->footer("Put this first in a job file:  # yaml-language-server: $schema=penstock.schema.json");
  schema->callback([cluster, &chosen] {
    chosen.run = [cluster] {
      std::printf("%s\n", (*cluster ? cluster_schema() : job_schema()).c_str());
      return 0;
    };
  });
}

}  // namespace penstock
