// `penstock doctor`: what this machine has and lacks, to read, and to paste into a question.
#include <cstdio>

#include "launch/command.h"
#include "launch/findings.h"

namespace penstock {
namespace {

int doctor(bool json) {
  Findings findings{{"penstock", PENSTOCK_VERSION}};
  find_machine(findings);
  find_mpi(findings);
  find_gpus(findings);
  std::fputs((json ? findings_json(findings) : findings_text(findings)).c_str(), stdout);
  return 0;
}

}  // namespace

void add_doctor(CLI::App& app, Chosen& chosen) {
  CLI::App* command =
      app.add_subcommand("doctor", "what has this machine? CPUs, memory, MPI, GPUs: to paste into a question");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "as a list of {topic, text, level, remedy}");
  command->callback([=, &chosen] { chosen.run = [=] { return doctor(*json); }; });
}

}  // namespace penstock
