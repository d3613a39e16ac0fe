#include "runtime/ranks/rank_endpoint.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/embedded/embedded.h"
#include "runtime/ranks/rank_roles.h"
#include "transport/mesh.h"
#include "transport/shm/shm.h"

namespace penstock {
namespace {

// Whether these two have anything to say to each other: all talk to the coordinator, and trainers with loaders.
bool talk(const Member& one, const Member& other) {
  return one.rank == 0 || other.rank == 0 || one.role != other.role;
}

// A number for each rank, equal for ranks of one node.
std::vector<int> node_numbers(const std::vector<Member>& members) {
  std::vector<int> nodes;
  std::vector<std::string> hosts;
  for (const Member& member : members) {
    const auto known = std::find(hosts.begin(), hosts.end(), member.host);
    nodes.push_back(static_cast<int>(known - hosts.begin()));
    if (known == hosts.end()) hosts.push_back(member.host);
  }
  return nodes;
}

}  // namespace

std::unique_ptr<Endpoint> make_endpoint(const Job& job, MpiSession& session, const std::vector<Member>& members,
                                        int self, std::shared_ptr<NodeRing>& ring) {
  const Member& me = members[static_cast<size_t>(self)];
  std::vector<PeerId> node;  // this one's, itself included
  std::vector<PeerId> here;
  std::vector<PeerId> elsewhere;
  for (const Member& other : members) {
    const bool local = other.host == me.host;
    if (local) node.push_back(other.rank);
    if (other.rank != self && talk(me, other)) (local ? here : elsewhere).push_back(other.rank);
  }
  const AskedToEnd asked_to_end = [&session] { return session.asked_to_end(); };
  auto mesh = std::make_unique<Mesh>();
  std::unique_ptr<ShmEndpoint> shm;
  if (job.transport != TransportChoice::mpi && !here.empty()) {
    ShmOptions options;
    options.job = session.world().job_id;
    options.token = session.world().job_token;
    options.self = self;
    options.node_peers = here;
    // Who waits here knows for whom, and gives up before those that only wait at the barrier behind it.
    constexpr double kSooner_s = 5;
    const double limit_s = std::max(0.9 * job.mpi.start_timeout_s, job.mpi.start_timeout_s - kSooner_s);
    options.connect_timeout_ns = static_cast<Nanoseconds>(limit_s * 1e9);
    options.asked_to_end = asked_to_end;
    shm = std::make_unique<ShmEndpoint>(options);
  }
  // Sockets of shm tell of deaths too, but only of ranks that talk to each other.
  if (node.size() > 1) {
    ring = std::make_shared<NodeRing>(session.world().job_id, session.world().job_token, self, node);
  }
  // Everybody listens now. A rank that is alone on its node has nobody to connect to, but belongs to the barrier.
  session.barrier();
  if (shm) shm->connect();
  if (ring) ring->connect(asked_to_end);
  if (shm) shm->wait_for_calls();  // nobody's calls are left to wait while ranks stand at the barrier
  // Everybody has called everybody now: a rank that ends at once, its program having failed, still reaches all others.
  session.barrier();
  if (ring) mesh->watch_node(ring);
  if (shm) {
    mesh->add(std::move(shm), here);
  } else {
    elsewhere.insert(elsewhere.end(), here.begin(), here.end());
  }
  if (!elsewhere.empty()) mesh->add(session.endpoint(), elsewhere);
  return mesh;
}

void place_receiver(const Job& job, int trainer, int trainers, ReceiverOptions& options) {
  options.trainer = trainer;
  options.replica = trainer / job.roles.ranks_per_replica;
  options.num_replicas = replicas_of(job, trainers);
  options.counted = trainer % job.roles.ranks_per_replica == 0;
}

Nanoseconds silence_limit_ns(const Job& job) {
  return static_cast<Nanoseconds>(job.balancer.lost_after_s * 1e9);
}

void place_receiver_in_world(const Job& job, const std::vector<Member>& members, int self, ReceiverOptions& options) {
  const Member& me = members[static_cast<size_t>(self)];
  const std::vector<PeerId> trainers = ranks_with(members, Role::trainer);
  options.self = self;
  place_receiver(job, me.number, static_cast<int>(trainers.size()), options);
  options.heartbeat_ns = static_cast<Nanoseconds>(job.balancer.heartbeat_s * 1e9);
  options.silence_ns = silence_limit_ns(job);
  for (const Member& member : members) options.hosts.push_back(member.host);
  options.local_replicas = me.local_trainers;
  options.host = me.host;
  if (self != options.coordinator) return;
  options.coordination = coordinator_options(job);
  options.coordination.loaders = ranks_with(members, Role::loader);
  options.coordination.receivers = trainers;
  options.coordination.nodes = node_numbers(members);
  if (on_one_host(members)) return;
  for (const Member& member : members) options.coordination.hosts.push_back(member.host);
}

}  // namespace penstock
