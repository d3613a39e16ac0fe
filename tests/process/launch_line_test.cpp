#include "launch/launch_line.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "runtime/base/error.h"

using namespace penstock;

namespace {

const MpiFound kOpenMpi4{"mpirun", 4, 1, 4};
const MpiFound kOpenMpi5{"mpirun", 5, 0, 11};

LaunchRequest request_for(int ranks) {
  LaunchRequest request;
  request.job = "job.yaml";
  request.ranks = ranks;
  request.trainers = 2;
  request.cores = 8;
  return request;
}

std::string line_of(const LaunchRequest& request, const MpiFound& mpi = kOpenMpi4) {
  return shell_quoted(launch_line(request, mpi).argv);
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string usage_error(const LaunchRequest& request) {
  try {
    launch_line(request, kOpenMpi4);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    CHECK_FALSE(error.remedy().empty());
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("the plain line, whole") {
  LaunchRequest request = request_for(4);
  request.overrides = {"seed=7"};
  request.options = {"--json"};
  request.program = {"python", "train.py", "--name", "it's me"};
  request.session_folder = "/tmp/penstock-abc";
  CHECK(line_of(request) ==
        "mpirun -n 4 --bind-to none --enable-recovery --mca orte_tmpdir_base /tmp/penstock-abc "
        "--mca btl_vader_backing_directory /tmp/penstock-abc -x PENSTOCK_SESSION_FOLDER=/tmp/penstock-abc "
        "penstock run job.yaml --json seed=7 -- python train.py --name 'it'\\''s me'");
  CHECK(line_of(request, kOpenMpi5) ==
        "mpirun -n 4 --bind-to none --with-ft ulfm --prtemca prte_tmpdir_base /tmp/penstock-abc "
        "--mca btl_sm_backing_directory /tmp/penstock-abc -x PENSTOCK_SESSION_FOLDER=/tmp/penstock-abc "
        "penstock run job.yaml --json seed=7 -- python train.py --name 'it'\\''s me'");
}

TEST_CASE("flags that depend on the machine") {
  LaunchRequest request = request_for(4);
  CHECK_FALSE(has(line_of(request), "--oversubscribe"));
  CHECK_FALSE(has(line_of(request), "root"));
  request.cores = 3;
  request.root = true;
  CHECK(has(line_of(request), "--oversubscribe"));
  CHECK(has(line_of(request), "--allow-run-as-root"));
}

TEST_CASE("an Open MPI with a folder of its own has the ranks find its library first") {
  LaunchRequest request = request_for(4);
  MpiFound mpi = kOpenMpi5;
  CHECK_FALSE(has(line_of(request, mpi), "LD_LIBRARY_PATH"));
  mpi.library_folder = "/opt/openmpi/lib";
  CHECK(has(line_of(request, mpi), " -x LD_LIBRARY_PATH=/opt/openmpi/lib penstock run"));
  request.environment["LD_LIBRARY_PATH"] = "/opt/cuda/lib";
  CHECK(has(line_of(request, mpi), " -x LD_LIBRARY_PATH=/opt/openmpi/lib:/opt/cuda/lib penstock run"));
}

TEST_CASE("ranks: given, by loaders, or by cores") {
  LaunchRequest request = request_for(0);
  request.loaders = 3;
  CHECK(launch_line(request, kOpenMpi4).ranks == 5);
  request.loaders = 0;
  request.loader_threads = 2;
  CHECK(launch_line(request, kOpenMpi4).ranks == 2 + 3);  // 8 cores: 2 programs, 3 loaders of 2 threads
  request.cores = 1;
  CHECK(launch_line(request, kOpenMpi4).ranks == 3);
  request.loaders = 1;
  request.hosts = {"a", "b"};
  CHECK(launch_line(request, kOpenMpi4).ranks == 6);
  CHECK(has(usage_error(request_for(2)), "-n 2 leaves no loader"));
  CHECK(has(usage_error(request_for(2)), "-n 3 or more"));
  request.ranks = 4;
  CHECK(has(usage_error(request), "-n and --loaders"));
  request.loaders = 0;
  request.ranks = 7;
  CHECK(has(usage_error(request), "7 ranks do not divide by 2 hosts"));
}

TEST_CASE("hosts: every one gets as many ranks, and our settings travel") {
  LaunchRequest request = request_for(6);
  request.hosts = {"a:8", "b", "a"};
  request.environment = {{"PENSTOCK_CFG__SEED", "3"}, {"HOME", "/root"}};
  CHECK(has(line_of(request), "mpirun -n 6 --host a:3,b:3 --map-by ppr:3:node --bind-to none"));
  CHECK(has(line_of(request), " -x PENSTOCK_CFG__SEED penstock run"));
  CHECK_FALSE(has(line_of(request), "HOME"));
  request.cores = 2;
  CHECK(has(line_of(request), "--map-by ppr:3:node --oversubscribe --bind-to"));
  CHECK(has(line_of(request, kOpenMpi5), "--map-by ppr:3:node:oversubscribe --bind-to"));
  // mpirun notices a lost node before the ranks' own heartbeats end the job, unless it was told when.
  CHECK(has(line_of(request),
            "--mca oob_tcp_keepalive_time 5 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3"));
  request.lost_after_s = 60;
  CHECK(has(line_of(request, kOpenMpi5), "--prtemca oob_tcp_keepalive_time 30 --prtemca oob_tcp_keepalive_intvl 6"));
  request.environment["OMPI_MCA_oob_tcp_keepalive_time"] = "100";
  CHECK_FALSE(has(line_of(request), "keepalive_time"));
  request.environment.clear();
  request.hosts.clear();
  request.hostfile = "hosts.txt";
  const auto in_file = parse_hostfile("# nodes\na slots=4\nb slots=4 # second\n\na slots=1\n", "hosts.txt");
  CHECK(hosts_text(in_file) == "a:5,b:4");
  for (const HostSlots& host : in_file) request.hostfile_hosts.push_back(host.host);
  CHECK(has(line_of(request), "--hostfile hosts.txt --map-by ppr:3:node"));
  request.hosts = {"a"};
  CHECK(has(usage_error(request), "--host and --hostfile"));
  // On this host alone the variables are inherited.
  request = request_for(3);
  request.hosts = {"localhost"};
  request.environment = {{"PENSTOCK_CFG__SEED", "3"}};
  CHECK_FALSE(has(line_of(request), "-x"));
}

TEST_CASE("names with a domain are kept whole, and where each rank is to be is known") {
  LaunchRequest request = request_for(0);
  request.trainer_hosts = parse_hosts({"a:2"});
  request.loader_hosts = parse_hosts({"10.0.0.7:1"});
  CHECK(launch_line(request, kOpenMpi4).rank_hosts == std::vector<std::string>{"a", "a", "10.0.0.7"});
  CHECK_FALSE(has(line_of(request), "keep_fqdn"));
  request.loader_hosts = parse_hosts({"b.site:1"});
  CHECK(has(line_of(request), "--mca orte_keep_fqdn_hostnames 1"));
  CHECK(has(line_of(request, kOpenMpi5), "--prtemca prte_keep_fqdn_hostnames 1"));
  LaunchRequest alike = request_for(4);
  alike.trainers = 1;
  alike.hosts = {"10.0.0.7:2", "b:2"};
  CHECK_FALSE(has(line_of(alike), "keep_fqdn"));
  alike.hosts = {"b.site:2", "c:2"};
  CHECK(has(line_of(alike), "--mca orte_keep_fqdn_hostnames 1"));
  CHECK(launch_line(alike, kOpenMpi4).rank_hosts == std::vector<std::string>{"b.site", "b.site", "c", "c"});
  alike.hosts.clear();
  alike.hostfile = "hosts.txt";
  alike.hostfile_hosts = {"b.site", "c"};
  CHECK(has(line_of(alike), "--mca orte_keep_fqdn_hostnames 1"));
  CHECK(launch_line(alike, kOpenMpi4).rank_hosts == std::vector<std::string>{"b.site", "b.site", "c", "c"});
  request.environment["OMPI_MCA_plm_rsh_agent"] = "/opt/ssh -q : rsh";
  CHECK(launch_line(request, kOpenMpi4).agent == std::vector<std::string>{"/opt/ssh", "-q"});
  CHECK(launch_line(request, kOpenMpi5).agent == std::vector<std::string>{"ssh"});
  request.agent = "/penstock/agent";  // a batch system's
  CHECK(launch_line(request, kOpenMpi4).agent.empty());
}

TEST_CASE("hosts that train and hosts that load: two parts of one line, the trainers first") {
  LaunchRequest request = request_for(0);
  request.overrides = {"seed=7"};
  request.options = {"--json"};
  request.program = {"./train", "--lr=1"};
  request.trainer_hosts = parse_hosts({"a:8"});
  request.loader_hosts = parse_hosts({"b:16", "c:16"});
  CHECK(launch_line(request, kOpenMpi4).ranks == 40);
  CHECK(launch_line(request, kOpenMpi4).nodes == 3);
  CHECK(has(line_of(request), "mpirun --map-by slot --oversubscribe --bind-to none --enable-recovery"));
  CHECK(has(line_of(request, kOpenMpi5), "mpirun --map-by slot:oversubscribe --bind-to none --with-ft ulfm"));
  CHECK(has(line_of(request),
            "-n 8 --host a:8 penstock run --role trainer job.yaml --json seed=7 -- ./train --lr=1 : "
            "-n 32 --host b:16,c:16 penstock run --role loader job.yaml --json seed=7"));
  request.session_folder = "/tmp/penstock-abc";  // what ranks are to find stands in both parts
  CHECK(has(line_of(request), "/tmp/penstock-abc -x PENSTOCK_SESSION_FOLDER=/tmp/penstock-abc -n 8 --host"));
  CHECK(has(line_of(request), ": --mca btl_vader_backing_directory /tmp/penstock-abc -x PENSTOCK_SESSION_FOLDER="));
  request.loader_hosts = parse_hosts({"a", "b:2"});  // beside the trainers, and elsewhere
  CHECK(has(usage_error(request), "how many ranks load on host 'a'"));
  request.loaders = 3;
  CHECK(has(line_of(request), "mpirun --map-by seq --oversubscribe"));
  CHECK(has(line_of(request, kOpenMpi5), "mpirun --map-by seq:oversubscribe"));
  CHECK(has(line_of(request), "-n 8 --host a,a,a,a,a,a,a,a penstock run --role trainer"));
  CHECK(has(line_of(request), "-n 5 --host a,a,a,b,b penstock run --role loader"));
  request.trainer_hosts = parse_hosts({"a"});
  CHECK(has(usage_error(request), "how many ranks train on host 'a'"));
  request.trainer_hosts.clear();
  CHECK(has(usage_error(request), "only the hosts of loaders are named"));
  request.trainer_hosts = parse_hosts({"a:1"});
  request.hosts = {"c"};
  CHECK(has(usage_error(request), "and so does --host"));
  CHECK_THROWS_AS(parse_hosts({"a:many"}), Error);
  CHECK_THROWS_AS(parse_hosts({":3"}), Error);
  CHECK(parse_nodes("2:8").nodes == 2);
  CHECK(parse_nodes("2:8").ranks == 8);
  CHECK(parse_nodes("2").ranks == 0);
  CHECK(parse_nodes("2:8").loaders == 0);
  CHECK(parse_nodes("2:8:4").loaders == 4);
  for (const char* word : {"", "0:8", "a:8", "2:", "2:0", "2:8:", "2:8:1:1"}) CHECK_THROWS_AS(parse_nodes(word), Error);
  request.hosts.clear();
  request.loaders = 3;
  request.loader_hosts = parse_hosts({"b:2", "c:2"});
  CHECK(has(usage_error(request), "--loaders 3 has no effect: b:2,c:2 says how many"));
  request.hosts.clear();
  request.trainers_given = true;
  CHECK_THROWS_WITH_AS(launch_line(request, kOpenMpi4), doctest::Contains("roles.trainers is 2, and --trainer-host"),
                       Error);
}

TEST_CASE("an agent of one's own reaches other hosts, whatever batch system is seen") {
  LaunchRequest request = request_for(4);
  CHECK_FALSE(has(line_of(request), "plm"));
  request.agent = "/f/agent";
  CHECK(has(line_of(request),
            "--mca plm rsh --mca plm_rsh_agent /f/agent --mca plm_rsh_no_tree_spawn 1 --mca ras '^slurm'"));
  CHECK(has(line_of(request, kOpenMpi5),
            "--prtemca plm ssh --prtemca plm_ssh_agent /f/agent --prtemca plm_ssh_no_tree_spawn 1 "
            "--prtemca ras '^slurm'"));
}

TEST_CASE("lists of hosts: blanks as mpirun allows them, and what is no host is refused by name") {
  CHECK(hosts_text(parse_hostfile("a slots = 2\nb\tslots =3 max_slots= 9\n c slots= 1 # slots=7\n", "f")) ==
        "a:2,b:3,c:1");
  CHECK(hosts_text(parse_hosts({"node-1.cluster_a:8", "10.0.0.7"})) == "node-1.cluster_a:8,10.0.0.7");
  for (const char* word : {"seed=3", "a b:2", "/etc/hosts", "-n", "job.yaml/", "a;b", ".", "h\xc3\xa4user:1"}) {
    CAPTURE(word);
    CHECK_THROWS_WITH_AS((void)parse_hosts({word}), doctest::Contains("is no name of a host"), Error);
  }
  CHECK_THROWS_WITH_AS((void)parse_hostfile("a\nseed=3\n", "f"), doctest::Contains("f:2: 'seed=3' is no name"), Error);
  CHECK_THROWS_WITH_AS((void)parse_hostfile("a slots = x\n", "f"), doctest::Contains("f:1: 'x' is no number"), Error);
  CHECK(hosts_text(parse_hostfile("a:2\nb:1 max-slots=4\n", "f")) == "a:2,b:1");
  CHECK_THROWS_WITH_AS((void)parse_hostfile("a slot=2\n", "f"), doctest::Contains("f:1: 'slot=2' is not understood"),
                       Error);
  CHECK_THROWS_WITH_AS((void)parse_hostfile("2001:db8::5 slots=1\n", "f"), doctest::Contains("more than one colon"),
                       Error);
  CHECK_THROWS_WITH_AS((void)parse_hosts({"fe80::1"}), doctest::Contains("more than one colon"), Error);
  CHECK_THROWS_WITH_AS((void)parse_hosts({"a:9999999"}), doctest::Contains("is no number of ranks"), Error);
  CHECK_THROWS_WITH_AS((void)parse_hostfile("# nobody\n\n", "f"), doctest::Contains("'f' names no host"), Error);
  CHECK_THROWS_WITH_AS((void)read_hostfile("/tmp"), doctest::Contains("'/tmp' is a folder"), Error);
  CHECK_THROWS_WITH_AS((void)read_hostfile("/no/such"), doctest::Contains("No such file"), Error);
}

TEST_CASE("which mpirun it is") {
  const MpiFound debian = parse_mpirun_version("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/\n");
  CHECK(debian.major == 4);
  CHECK(debian.minor == 1);
  CHECK(debian.patch == 4);
  CHECK(parse_mpirun_version("mpirun (Open MPI) 5.0.11\n").patch == 11);
  CHECK(parse_mpirun_version("mpirun (Open MPI) 5.1.0rc1\n").minor == 1);
  const auto refused = [](const std::string& text) {
    try {
      parse_mpirun_version(text);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  CHECK(has(refused("HYDRA build details:\n    Version: 4.0.2\n"), "MPICH's (Hydra)"));
  CHECK(has(refused("Intel(R) MPI Library for Linux* OS, Version 2021.9\n"), "Intel MPI's"));
  CHECK(has(refused("mpirun (Open MPI) 3.1.6\n"), "'mpirun (Open MPI) 3.1.6'; only Open MPI 4 and 5"));
  CHECK(has(refused(""), "unknown program"));
}

TEST_CASE("what is run for --version may be missing") {
  CHECK_THROWS_WITH_AS(find_mpirun("/no/such/mpirun"),
                       doctest::Contains("cannot start '/no/such/mpirun': No such file or directory"), Error);
}

TEST_CASE("words for a shell") {
  CHECK(shell_quoted({"a", "", "b c", "$x", "k=v", "/p/q-r_s.t:u,v@w", "~"}) ==
        "a '' 'b c' '$x' k=v /p/q-r_s.t:u,v@w '~'");
}

TEST_CASE("exit codes") {
  const auto exited = [](int code) { return code << 8; };
  JobOutcome job({.ranks = 1}, 0);
  for (int code = 1; code <= 5; ++code) CHECK(launch_exit_code(exited(code), job, 0) == code);
  CHECK(launch_exit_code(exited(0), job, 0) == 5);  // nobody said that the job was done
  CHECK(launch_exit_code(exited(6), job, 0) == 1);
  CHECK(launch_exit_code(exited(137), job, 0) == 5);  // a rank was killed
  CHECK(launch_exit_code(9, job, 0) == 5);            // mpirun was
  CHECK(launch_exit_code(exited(1), job, 2) == 130);
  CHECK(launch_exit_code(exited(0), job, 15) == 143);
  job.began(0, "a", 0);
  CHECK(launch_exit_code(exited(0), job, 0) == 5);  // it was killed: mpirun says 0 to that too
  job.ended(0, 4, "", 0);
  CHECK(launch_exit_code(exited(0), job, 0) == 4);
}

TEST_CASE("the last line tells the cause, where it was, and whether memory ran out") {
  JobOutcome job({.ranks = 2}, 0);
  CHECK(closing_line({.wait_status = 213 << 8, .host = "a"}, job) ==
        "the job did not start: mpirun ended with status 213 before any rank was heard; what it said stands above");
  CHECK(closing_line({.wait_status = SIGKILL, .ended_mpirun = true, .host = "a"}, job) ==
        "the job failed with exit code 5: mpirun started no rank that could be heard");
  job.began(0, "a", 0);
  job.began(1, "b", 0);
  job.hung_up(1, 1);
  CHECK(closing_line({.wait_status = SIGKILL, .host = "a"}, job) ==
        "mpirun (host a) was killed by SIGKILL, and the job with it");
  const std::string lost =
      "the job failed with exit code 5: no rank said how it ended; killed, or cut off with its host: "
      "rank 1 (host b)";
  CHECK(closing_line({.wait_status = SIGKILL, .ended_mpirun = true, .host = "a"}, job) == lost);
  CHECK(
      closing_line({.host = "a", .oom_kills = 1}, job) ==
      lost +
          "; on this host memory ran out and the kernel killed 1 process meanwhile (see dmesg); lower loader.threads, "
          "loader.cache_gb, loader.prefetch or the splits' batch_size");
  CHECK(closing_line({.interrupted_by = SIGINT, .host = "a"}, job) == "");
}

TEST_CASE("where ranks are gone before the job ran, the last line names a limit on their memory") {
  const LaunchEnd limited{.wait_status = 1 << 8, .host = "a", .memory_limit = 700'000'000};
  const std::string hint =
      "; on this host `ulimit -v` allows each process 700 MB, which may be too little for MPI: raise it";
  JobOutcome job({.ranks = 2}, 0);
  CHECK(closing_line(limited, job).ends_with("what it said stands above" + hint));
  JobOutcome refused = job;
  refused.began(0, "a", 0);
  refused.ended(0, 3, "a bad key", 0);
  CHECK(closing_line(limited, refused).ends_with(": a bad key; rank 1 was never heard of"));

  for (const int rank : {0, 1}) job.began(rank, "a", 0);
  JobOutcome running = job;
  job.hung_up(1, 0, 1 << 8);  // as waitpid() has it
  CHECK(closing_line(limited, job).ends_with("left without a word, with status 1: rank 1 (host a)" + hint));
  CHECK(closing_line({.interrupted_by = SIGINT, .host = "a", .memory_limit = 1}, job) == "");
  for (const int rank : {0, 1}) running.running(rank, 0);
  running.hung_up(1, 0, 1 << 8);
  CHECK(closing_line(limited, running).ends_with("with status 1: rank 1 (host a)"));
}
