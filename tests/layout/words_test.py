"""The sources use the words of the glossary in runtime/README.md, and none of those that they have replaced.

A word is looked for as a part of identifiers (`gpu_export_mb`, `GpuLink`) and as a word of sentences; exceptions name the file
and what the line must hold. To allow another meaning, add it to EXCEPTIONS with what it is.
"""
import os
import re
import subprocess
import sys

SOURCE = os.environ.get("PENSTOCK_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDERS = ("bench", "bindings", "cmake", "configs", "docs", "examples", "launch", "runtime", "sampler", "tests", "transport")
ENDINGS = (".h", ".cpp", ".cu", ".c", ".py", ".md", ".txt", ".cmake", ".yaml", ".sh")

# Looked for in every identifier and every sentence: the old word, and what to say.
PARTS = {
    "card": "GPU, gpu", "cards": "GPUs, gpus", "port": "receiver", "ports": "receivers",
    "cell": "chunk buffer", "cells": "chunk buffers", "slot": "batch buffer, or row of a batch", "slots": "batch buffers",
    "verdict": "status (SampleStatus)", "verdicts": "statuses", "learnt": "learned", "upright": "oriented",
    "lender": "exporter", "taker": "offload", "takers": "offloads", "stretch": "run of MCUs", "stretches": "runs of MCUs",
    "patience": "wait limit, wait deadline", "nap": "sleep", "naps": "sleeps, polling backoff", "scars": "failed chunks",
    "greet": "handshake", "greeted": "handshake done",
}
# (base name, what the line has): where such a word means something else.
EXCEPTIONS = {
    "card": [(r"README\.md", r"^[^:]*\| `card`, `cuda` \| 45")],
    "port": [(r".", r"TCP|--port|MASTER_PORT|master_port|main_port|free_port|sin_port|free_tcp_port|socket's port"),
             (r"hosts\.py|tfdata_service\.py|training_test\.py|server\.py|serve_program_test\.py|end_channel\w*\.\w+", r"port"), (r"run_mpi_rank\.cpp", r'"port"')],
    "cell": [(r"csv_\w+\.\w+|containers_test\.cpp|conversions_test\.py", r"cell"), (r"show\.py|state_test\.py|python_api\.md", r"notebook's cell"),
             (r"contact_sheet\.cpp", r"cell_(width|height)"), (r"unpack\.cpp", r"csv_cell"), (r"masks_torchvision_test\.py", r"cell"), (r"layout_test\.py|pillow_exact_test\.py", r"cell")],
    "slot": [(r"placement\.\w+|launch_line\w*\.\w+|host_list\.\w+|launch_command\.cpp|process_plan_test\.cpp|several_hosts_test\.py|nodes_apart_test\.py|kubernetes_\w+\.\w+|launch_files_test\.py", r"slot|SLOTS"), (r"pack_makers\.\w+", r"slot"), (r"common\.py", r"__slots__"),
             (r"(README|running|troubleshooting|commands)\.md", r"mpirun: not enough slots|slots=N"), (r".", r"slotsPerWorker")],
    "stretch": [(r"random_color\.cpp", r"stretches each channel"), (r"duty_cycle\w*\.\w+", r"stretch")],
    "nap": [(r"worker_process\.cpp", r"nanosleep")],
    "greet": [(r"wrap_test\.py", r"greet")],
}
for plural, singular in (("ports", "port"), ("cells", "cell"), ("slots", "slot"), ("stretches", "stretch")):
    EXCEPTIONS[plural] = EXCEPTIONS[singular]

# Identifiers and phrases that are no single part.
PHRASES = [
    (r"\bDecodeWish\b|\bdecode_wish\b", "DecodeOptions"), (r"\bVerdict\b", "SampleStatus, WaitOutcome"),
    (r"\bPatience\b|\bpatience\.h\b", "WaitDeadline"), (r"\b(CardLanes?|card_lanes)\b", "InFlightBatches"),
    (r"\b(Passes|passes_test|pass_answers|PassAnswers)\b(?=[ :;({&_.]|\.h)(?<!Both Passes)", "Iterations"),
    (r"\b(?:a|each|every|new|next|this|that) pass (?:over (?:a|an|the) (?:split|epoch)|is a new epoch|ends|begins)\b", "iteration"),
    (r"\b(learnt|Learnt)_?index|\bentry[ _-]points?\b|\bEntryPoint\b", "side index, learned index, restart points"),
    (r"\"not mine\"|: not mine\b|\blibrary_would_stop_quietly\b", "not supported: fall back; without a warning"),
    (r"\b(Naps|naps\.h|PieceLender|piece_lender|CardPieces|card_pieces|CardShares|card_shares)\b",
     "PollingBackoff, MemoryExporter, BufferRanges, ExportRegistry"),
    (r"\b(LoaderBook|StreamBook|DeliveryBook|PortRecord|loader_book|stream_book|delivery_book|port_record)\b",
     "LoaderRegistry, LeaseStreamRegistry, DeliveryLedger, ReceiverStatistics"),
    (r"\b(PortEnd|JobEnd|port_end|job_end|port_meeting|meet_port)\b", "ReceiverShutdown, JobShutdown, ReceiverConnection"),
    (r"\b(EntropyWay|NearestWay|LeasesOnTheWay|leases_on_the_way)\b", "EntropyMode, NearestMethod, LeasesInTransit"),
    (r"\b(ImageTaker|image_taker|ChunkMade|CellBack|SlotFree|StreamBook|StreamId)\b", "the names of the glossary"),
    (r"\b(vector_limit|lanes_at_rest|geometric_plan|pipeline_plan|work_line|new_file|run_here|run_rank)\b",
     "simd_limit, lane_refill, crop_resize_plan, crop_resize_planner, progress_line, atomic_file, run_single_process, run_mpi_rank"),
    (r"\bPENSTOCK_(CARDS|PORT)\b", "PENSTOCK_GPUS, PENSTOCK_RECEIVER"),
    (r"\bat the door\b|\bgreeted\b", "connected, handshake done"),
    (r"\bWay\b|\bstruct Piece\b|\b(pieces_|piece_bytes|piece_at)\b", "Link, Route; range, chunks"),
    (r"\btold_\w+|\bhear\(|\bheard_\b|\bhear_of\b|\bEndReporter::say\b", "reported, receive, send"),
    (r"\b(gpu_share_mb|SharedGpuMemory|GpuSharedFigures|shared_bytes|ChunkWork::Shared)\b", "gpu_export_mb, exported memory: a share is a portion"),
    (r"\bheld_stream\b|\bLeaseStreamId stream = 0|\buint64_t stream\b|\blease\.stream\b", "iteration, lease_stream"),
    (r"^\s*(?://|#) Of (?!course)", "a sentence"),
    (r"\bWhoever makes a batch, it never changes\b|\bWho opens a split once more\b", "plain sentences"),
]
# Looked for first, by grep, because few lines have any of them.
CANDIDATES = "(?i:" + "|".join(PARTS) + ")|" + "|".join(f"(?:{pattern})" for pattern, _ in PHRASES)
TOKEN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def excepted(word, base, line):
    return any((name == "." or re.fullmatch(name, base)) and re.search(what, line, re.I) for name, what in EXCEPTIONS.get(word, ()))


def complaints_of(base, line):
    """[(old word, what to say)] of one line of the file `base`."""
    found = []
    for token in TOKEN.findall(line):
        for part in PART.findall(token):
            word = part.lower()
            if word in PARTS and not excepted(word, base, line):
                found.append((token, PARTS[word]))
    for pattern, instead in PHRASES:
        for match in re.finditer(pattern, line):
            found.append((match.group(0), instead))
    return found


def files():
    for folder in FOLDERS:
        for root, folders, names in os.walk(os.path.join(SOURCE, folder)):
            folders[:] = [name for name in folders if name not in ("results", "__pycache__") and not name.startswith("build")]
            for name in names:
                if name.endswith(ENDINGS) and name != os.path.basename(__file__):
                    yield os.path.join(root, name)
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CMakeLists.txt"):
        yield os.path.join(SOURCE, name)


def test_old_words_are_found():
    """Else the test would pass on anything."""
    for base, line in (("job.h", "  int cards = 1;"), ("port.h", "class Port {"), ("x.cpp", "  SlotPool pool;"), ("README.md", "a card decodes"),
                       ("decoder.h", "const DecodeWish& wish"), ("a.py", '"PENSTOCK_CARDS": "host"'), ("b.h", "// the learnt index"), ("d.cpp", '"--no-entry-points"'),
                       ("l.h", "  struct Way {"), ("m.h", "std::vector<Piece> pieces_;"), ("r.cpp", "told_problem_ = text;"), ("f.h", "void hear(Event event);"), ("t.h", "  // Of a batch."),
                       ("k.yaml", "gpu_share_mb: 64"), ("p.h", "uint64_t stream = 0;"), ("c.h", "// Whoever makes a batch, it never changes what is in it"), ("shm.cpp", "// a cell's bytes")):
        assert complaints_of(base, line), (base, line)
    for base, line in (("trainer.h", "// A TCP port that is free"), ("csv_reader.h", "// Cells are separated by commas"), ("resample.h", "// both passes"),
                       ("x.py", "pass"), ("report.cpp", "support and reports of imports"), ("kernels.h", "the finishing pass"), ("j.h", "two gpu_shares; what was told, by the way"), ("x.md", "one stream, in pieces")):
        assert not complaints_of(base, line), (base, line, complaints_of(base, line))


def test_sources():
    found, paths = [], list(files())
    for path in paths:
        base = os.path.basename(path)
        for old, instead in complaints_of(base, base.rsplit(".", 1)[0]):
            found.append(f"{os.path.relpath(path, SOURCE)}: the file's name has '{old}'; say {instead}")
    lines = 0
    for first in range(0, len(paths), 500):
        out = subprocess.run(["grep", "-aHnP", CANDIDATES, "--", *paths[first:first + 500]], capture_output=True, text=True, errors="replace",
                             env={**os.environ, "LC_ALL": "C.UTF-8"})
        assert out.returncode in (0, 1), out.stderr
        for match in out.stdout.split("\n")[:-1]:
            path, number, line = match.split(":", 2)
            lines += 1
            for old, instead in complaints_of(os.path.basename(path), line):
                found.append(f"{os.path.relpath(path, SOURCE)}:{number}: '{old}'; say {instead}")
    assert len(paths) > 500 and lines > 500, (len(paths), lines)
    print(f"{len(paths)} files, {lines} lines looked at closely, {len(found)} old words")
    assert not found, "\n".join(found[:60])


def formatter():
    for name in ("clang-format-14", "clang-format"):
        try:
            if b"version 14" in subprocess.run([name, "--version"], capture_output=True).stdout:
                return name
        except FileNotFoundError:
            pass
    return None


def test_format():
    tool = formatter()
    if tool is None:
        print("skip: clang-format 14 is not installed (apt-get install clang-format)")
        sys.exit(77)
    sources = [path for path in files() if path.endswith((".h", ".cpp", ".cu", ".c"))]
    found = []
    for first in range(0, len(sources), 50):
        out = subprocess.run([tool, "--dry-run", "--Werror", *sources[first:first + 50]], capture_output=True, text=True)
        found += re.findall(r"^(.*?):\d+:\d+: error", out.stderr, re.M)
    assert not found, "not as .clang-format says: " + ", ".join(sorted(set(found))[:20])


if __name__ == "__main__":
    test_old_words_are_found()
    test_sources()
    test_format()
