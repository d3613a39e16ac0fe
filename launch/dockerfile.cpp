#include <nlohmann/json.hpp>

#include "launch/launch_files.h"
#include "runtime/base/json_text.h"

namespace penstock {

std::string dockerfile(const LaunchFile& file) {
  const bool cuda = file.gpus > 0;
  std::vector<std::string> command = file.command;
  if (!file.program.empty()) command.push_back("--");
  command.insert(command.end(), file.program.begin(), file.program.end());
  std::string text =
      "# Written by `penstock launch --docker`. In a clone of penstock, and then where the job file lies:\n"
      "#   docker build -t penstock -f Dockerfile .\n"
      "#   docker run --rm " +
      std::string(cuda ? "--gpus all " : "") +
      "-v \"$PWD\":/job penstock        # docker stop -t SECONDS gives programs trainer.grace_s\n"
      "# Add what the program needs: FROM penstock, and for Python `pip install /usr/src/penstock` in a virtual "
      "environment.\n"
      "FROM debian:12-slim\n"
      "COPY . /usr/src/penstock\n"
      "WORKDIR /usr/src/penstock\n"
      "# sshd is for Kubernetes, where mpirun reaches the other pods by ssh; their keys are the job's own.\n"
      "# hadolint ignore=DL3008\n"
      "RUN launch/install_packages.sh \\\n";
  if (cuda)
    text += "    && apt-get install -y --no-install-recommends openssh-server python3-venv \\\n";
  else
    text += "    && apt-get install -y --no-install-recommends openssh-server \\\n";
  text +=
      "    && rm -rf /var/lib/apt/lists/* && mkdir -p /run/sshd \\\n"
      "    && printf 'StrictHostKeyChecking no\\nUserKnownHostsFile /dev/null\\nLogLevel ERROR\\n' "
      ">/etc/ssh/ssh_config.d/penstock.conf\n";
  if (cuda) {
    text +=
        "# The compiler is NVIDIA's, from PyPI; the driver comes with the NVIDIA container toolkit when the image "
        "runs.\n"
        "RUN launch/install_cuda.sh\n"
        "ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility\n";
  }
  text += "RUN cmake --preset release -DPENSTOCK_TESTS=OFF -DPENSTOCK_BENCH=OFF" +
          std::string(cuda ? " -DPENSTOCK_CUDA=ON" : "") +
          " \\\n"
          "    && cmake --build --preset release && cmake --install build/release --prefix /usr/local \\\n" +
          (cuda ? "    && cp build/cuda/nvidia/cu13/lib/libnvjpeg.so.13 /usr/local/lib/ \\\n" : "") +
          "    && ldconfig && rm -rf build\n"
          "WORKDIR /job\n";
  return text + "CMD " + json_text(nlohmann::json(command));
}

}  // namespace penstock
