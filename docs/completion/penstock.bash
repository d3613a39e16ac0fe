# bash completion of penstock; docs/generate.py writes this file.
_penstock() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" command="" words="" at
  for ((at = 1; at < COMP_CWORD; ++at)); do
    [[ "${COMP_WORDS[at]}" == -- ]] && { compopt -o default; return; }   # what follows is the program
    [[ "${COMP_WORDS[at]}" == -* ]] && continue
    case "$command" in
      "") command="${COMP_WORDS[at]}" ;;
      config|bench)
        [[ " $(_penstock_below "$command") " == *" ${COMP_WORDS[at]} "* ]] && command+=" ${COMP_WORDS[at]}" ;;
    esac
  done
  case "$before" in
    --device) mapfile -t COMPREPLY < <(compgen -W "cpu gpu auto" -- "$word"); return ;;
    --policy) mapfile -t COMPREPLY < <(compgen -W "production fixed round-robin shortest-queue power-of-two" -- "$word"); return ;;
    --role) mapfile -t COMPREPLY < <(compgen -W "trainer loader" -- "$word"); return ;;
  esac
  case "$command" in
    "") words="init run serve launch check doctor index pack unpack inspect demo-data config schema bench report replay profile
      simulate validate plan sweep explain -h --help --version" ;;
    "init") words="-h --help --data --val --val-share" ;;
    "run") words="-h --help --epochs --json --quiet --no-progress --role --dump --raw --profile" ;;
    "serve") words="-h --help --stop --idle-s --json --quiet --no-progress --role" ;;
    "launch") words="-h --help -n --ranks --loaders --host --hostfile --trainer-host --trainer-hostfile --loader-host --loader-hostfile
      --mpirun --print --run --nodes --trainer-nodes --loader-nodes --slurm --k8s --docker --image --gpus --serve
      --idle-s --json --quiet --epochs --profile --dump --raw" ;;
    "check") words="-h --help --decode --most" ;;
    "doctor") words="-h --help --json" ;;
    "index") words="-h --help --out --split --no-headers --no-restart-points" ;;
    "pack") words="-h --help --split --shard-size --threads --rewrite --no-verify --no-restart-points --tar --json --quiet" ;;
    "unpack") words="-h --help --overwrite --quiet" ;;
    "inspect") words="-h --help --split --epoch --steps --first-step --trainers --out --raw --sheet" ;;
    "demo-data") words="-h --help --count --val-count --classes --seed --subsampling --megapixels --threads" ;;
    "config") words="show -h --help" ;;
    "config show") words="-h --help --origin" ;;
    "schema") words="-h --help --cluster" ;;
    "bench") words="decode -h --help --split --seconds --json" ;;
    "bench decode") words="-h --help --split --device --seconds --check --json" ;;
    "report") words="-h --help --split --json" ;;
    "replay") words="-h --help" ;;
    "profile") words="-h --help -o --output --seconds" ;;
    "simulate") words="-h --help --profile --split --samples --epochs --steps --warmup-steps --seeds --no-barrier --json --quiet
      --what-if --balancer-log --policy" ;;
    "validate") words="-h --help --mean --worst --stalled --half-widths --json" ;;
    "plan") words="-h --help --profile --split --samples --epochs --steps --warmup-steps --seeds --no-barrier --json --quiet --target
      --html" ;;
    "sweep") words="-h --help --profile --split --samples --epochs --steps --warmup-steps --seeds --no-barrier --json --quiet
      --what-if" ;;
    "explain") words="-h --help --profile --split --samples --epochs --steps --warmup-steps --seeds --no-barrier --json --quiet
      --what-if" ;;
  esac
  if [[ "$word" == -* || -z "$command" ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -W "$(_penstock_below "$command")" -- "$word"; compgen -f -- "$word")
    compopt -o filenames
  fi
}
_penstock_below() {
  case "$1" in
    "config") echo "show" ;;
    "bench") echo "decode" ;;
  esac
}
complete -F _penstock penstock
