#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "runtime/base/error.h"
#include "runtime/base/switches.h"
#include "runtime/job/job.h"
#include "runtime/job/job_reader.h"
#include "runtime/job/overlay.h"

namespace penstock {

std::string read_yaml_file(const std::string& path, const std::string& what, const std::string& remedy) {
  const std::string start = "cannot read the " + what + " " + in_quotes(path) + ": ";
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw Error(ErrorKind::config, start + "it is a folder",
                "name the file, as in " + path + "/" + what.substr(0, what.find(' ')) + ".yaml");
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int why = errno;
    throw Error(ErrorKind::config, start + (why != 0 ? std::strerror(why) : "unknown reason"),
                why == EACCES ? "ask for permission to read it (chmod), on every node" : remedy);
  }
  // One byte more than allowed, so that the parser sees that it is too much, whatever the file's size says.
  std::string text(kYamlMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) throw Error(ErrorKind::config, start + "reading failed");
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

std::string read_job_file(const std::string& path) {
  return read_yaml_file(path, "job file", "`penstock init --data DIR > job.yaml` writes one");
}

std::map<std::string, std::string> job_environment() {
  return environment_values(kEnvironmentPrefix);
}

JobWithOrigins parse_with_origins(const std::string& text, const std::string& path,
                                  const std::vector<std::string>& overrides,
                                  const std::map<std::string, std::string>& environment) {
  const SourceText file(SourceText::Kind::file, path, text);
  Complaints complaints;
  Overlay overlay(complaints);
  YamlNode root;
  const bool readable = parse_yaml(file, 0, complaints, root);
  overlay.add_environment(environment);
  for (const std::string& assignment : overrides) overlay.add_override(assignment);
  JobWithOrigins out;
  out.job.path = path;
  // A file that is no YAML would only give "missing key" for everything.
  if (readable) {
    if (root.is_mapping() || root.is_null()) overlay.apply(root);
    read_job(root, out.job, out.origins, complaints);
    out.job.roles.trainers_given = out.origins.count("roles.trainers") != 0;
  }
  complaints.throw_if_any();
  return out;
}

Job parse_job(const std::string& text, const std::string& path, const std::vector<std::string>& overrides,
              const std::map<std::string, std::string>& environment) {
  return parse_with_origins(text, path, overrides, environment).job;
}

Job load_job(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_job(read_job_file(path), path, overrides, job_environment());
}

Job load_job_text(const std::string& text, const std::string& name, const std::vector<std::string>& overrides) {
  return parse_job(text, name, overrides, job_environment());
}

}  // namespace penstock
