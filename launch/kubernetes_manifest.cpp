#include <cmath>
#include <filesystem>

#include "launch/init_job.h"
#include "launch/launch_files.h"
#include "launch/launch_line.h"

namespace penstock {
namespace {

constexpr const char* kHostfile = "/etc/mpi/hostfile";  // the operator's, of its workers

// Every line of `text` behind so many spaces; empty ones stay empty.
std::string indented(const std::string& text, size_t spaces) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) out += std::string(spaces, ' ') + text.substr(at, end - at);
    out += '\n';
    at = end + 1;
  }
  return out;
}

// What a pod of `group` asks for; without a group, the launcher's.
std::string resources(const LaunchFile& file, const NodeGroup* group) {
  std::string requests = "cpu: 1, memory: 1G";
  std::string limits;
  if (group != nullptr) {
    requests = "cpu: " + std::to_string(group->trainers + group->loaders * file.loader_threads);
    const auto memory_gb = static_cast<int>(std::ceil(group->loaders * file.loader_memory_gb));
    if (memory_gb > 0) requests += ", memory: " + std::to_string(memory_gb) + "G";
    if (group->trainers > 0 && file.gpus > 0) {
      limits = "  limits: {nvidia.com/gpu: " + std::to_string(file.gpus) + "}\n";
    }
  }
  return "resources:\n  requests: {" + requests + "}\n" + limits;
}

// The specification of a pod. `command` is YAML, from column 0.
std::string pod(const LaunchFile& file, const std::string& container, const std::string& command,
                const NodeGroup* group, const std::string& more_mounts, const std::string& more_volumes) {
  constexpr double kToEnd_s = 30;  // beyond the grace
  const std::string folder = std::filesystem::path(file.job).parent_path();
  return "terminationGracePeriodSeconds: " + std::to_string(static_cast<int>(std::ceil(file.grace_s + kToEnd_s))) +
         "\ncontainers:\n- name: " + container + "\n  image: " + yaml_quoted(file.image) +
         "\n  workingDir: " + yaml_quoted(file.folder) + "\n" + indented(command, 2) +
         indented(resources(file, group), 2) +
         "  volumeMounts:\n"
         "  - {name: files, mountPath: " +
         yaml_quoted(folder) +
         "}\n"
         "  - {name: job, mountPath: " +
         yaml_quoted(file.job) +
         ", subPath: job.yaml}\n"
         "  - {name: shared-memory, mountPath: /dev/shm}\n" +
         more_mounts +
         "volumes:\n"
         "- {name: files, persistentVolumeClaim: {claimName: " +
         file.name +
         "-files}}\n"
         "- {name: job, configMap: {name: " +
         file.name +
         "-job}}\n"
         "- {name: shared-memory, emptyDir: {medium: Memory}}\n" +
         more_volumes;
}

// A node waits for mpirun's ssh, whose session gets the container's environment by PAM. Where all pods are deleted at
// once, it stays until the launcher has ended the ranks, whose programs have their grace.
constexpr const char* kNodeCommand =
    R"(command: ["/bin/sh", "-c", "env >/etc/environment; exec /usr/sbin/sshd -De -o StrictModes=no"]
lifecycle:
  preStop:
    exec: {command: ["/bin/sh", "-c", "while grep -qs ^penstock /proc/[0-9]*/comm; do sleep 0.5; done"]}
)";

// Kubernetes takes "$$" in args for "$", and "$(NAME)" for a variable's value.
std::string with_dollars_kept(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '$' ? std::string("$$") : std::string(1, c);
  return out;
}

std::string launcher_command(const LaunchFile& file) {
  const NodeGroup& first = file.groups[0];
  std::vector<std::string> command = file.command;
  std::string script;
  std::string hosts = kHostfile;
  if (file.groups.size() == 1) {
    command.insert(command.end(),
                   {std::string("--hostfile=") + kHostfile, "--loaders=" + std::to_string(first.loaders)});
  } else {
    const std::string loaders = "/run/loaders";  // with the names that the set gives its pods
    script = "{\n";
    if (first.loaders > 0) {
      script += "  sed 's/slots=.*/slots=" + std::to_string(first.loaders) + "/' " + kHostfile + "\n";
    }
    script += "  for i in $(seq 0 " + std::to_string(file.groups[1].nodes - 1) + "); do echo \"" + file.name +
              "-loader-$i." + file.name + "-loader slots=" + std::to_string(file.groups[1].loaders) + "\"; done\n} >" +
              loaders + "\n";
    hosts += " " + loaders;
    command.insert(command.end(), {std::string("--trainer-hostfile=") + kHostfile, "--loader-hostfile=" + loaders});
  }
  if (!file.program.empty()) command.push_back("--");
  command.insert(command.end(), file.program.begin(), file.program.end());
  script += "for host in $(cut -d' ' -f1 " + hosts +
            "); do\n"
            "  tries=0\n"
            "  until ssh -o BatchMode=yes -o ConnectTimeout=2 \"$host\" true; do\n"
            "    tries=$((tries + 1))\n"
            "    [ \"$tries\" -lt 300 ] || { echo \"penstock: $host does not answer\" >&2; exit 5; }\n"
            "    sleep 2\n"
            "  done\n"
            "done\n"
            "exec " +
            with_dollars_kept(shell_quoted(command)) + "\n";
  return "command: [\"/bin/sh\", \"-c\"]\nargs:\n- |\n" + indented(script, 2);
}

std::string replica(const std::string& type, int replicas, const std::string& pod) {
  return "    " + type + ":\n      replicas: " + std::to_string(replicas) +
         "\n      restartPolicy: Never\n      template:\n        spec:\n" + indented(pod, 10);
}

// Nodes that only load: the operator knows one kind of worker.
std::string loader_set(const LaunchFile& file, const NodeGroup& loaders) {
  const std::string name = file.name + "-loader";
  const std::string key =
      "- name: ssh\n"
      "  secret:\n"
      "    secretName: " +
      file.name +
      "-ssh\n"
      "    defaultMode: 0600\n"
      "    items:\n"
      "    - {key: ssh-privatekey, path: id_rsa}\n"
      "    - {key: ssh-publickey, path: id_rsa.pub}\n"
      "    - {key: ssh-publickey, path: authorized_keys}\n";
  return "---\n"
         "apiVersion: v1\n"
         "kind: Service\n"
         "metadata: {name: " +
         name +
         "}\n"
         "spec:\n"
         "  clusterIP: None\n"
         "  publishNotReadyAddresses: true\n"
         "  selector: {app: " +
         name +
         "}\n"
         "---\n"
         "apiVersion: apps/v1\n"
         "kind: StatefulSet\n"
         "metadata: {name: " +
         name +
         "}\n"
         "spec:\n"
         "  serviceName: " +
         name + "\n  replicas: " + std::to_string(loaders.nodes) +
         "\n"
         "  podManagementPolicy: Parallel\n"
         "  selector: {matchLabels: {app: " +
         name +
         "}}\n"
         "  template:\n"
         "    metadata: {labels: {app: " +
         name +
         "}}\n"
         "    spec:\n" +
         indented(pod(file, "loader", kNodeCommand, &loaders, "  - {name: ssh, mountPath: /root/.ssh}\n", key), 6);
}

}  // namespace

std::string kubernetes_manifest(const LaunchFile& file) {
  const bool apart = file.groups.size() > 1;
  const NodeGroup& first = file.groups[0];
  std::string text =
      "# Written by `penstock launch --k8s`; not tested on a cluster. It needs Kubeflow's mpi-operator (MPIJob "
      "v2beta1), an\n"
      "# image made with the Dockerfile of `penstock launch --docker`, and a claim " +
      file.name +
      "-files that many nodes may mount\n"
      "# (ReadWriteMany), with what lies beside the job file: data and program.\n"
      "#   kubectl apply -f FILE; kubectl logs -f job/" +
      file.name + "-launcher; kubectl delete -f FILE\n";
  if (apart) {
    text +=
        "# The workers of the MPIJob are the nodes that train. The operator knows one kind of worker, so those that "
        "load are\n"
        "# a StatefulSet, which stays after the job's end until it is deleted.\n";
  }
  text += "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + file.name + "-job}\ndata:\n  job.yaml: |2\n" +
          indented(file.job_text, 4) +
          "---\n"
          "apiVersion: kubeflow.org/v2beta1\n"
          "kind: MPIJob\n"
          "metadata: {name: " +
          yaml_quoted(file.name) +  // `no` would be false
          "}\n"
          "spec:\n"
          "  slotsPerWorker: " +
          std::to_string(apart ? first.trainers : first.trainers + first.loaders) +
          "\n"
          "  runPolicy: {cleanPodPolicy: Running, backoffLimit: 0}\n"
          "  mpiReplicaSpecs:\n" +
          replica("Launcher", 1, pod(file, "launcher", launcher_command(file), nullptr, "", "")) +
          replica("Worker", first.nodes, pod(file, "worker", kNodeCommand, &first, "", ""));
  if (apart) text += loader_set(file, file.groups[1]);
  text.pop_back();  // whoever prints it ends the last line
  return text;
}

}  // namespace penstock
