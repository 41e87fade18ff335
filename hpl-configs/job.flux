#!/bin/bash
# A protected run in a Flux job, started by Open MPI's or MPICH's own launcher. docs/CLUSTERS.md explains each line.
#   flux batch hpl-configs/job.flux -n 200000 --nb 256 -p 2 -q 2 --checkpoint auto
#flux: --job-name=skt-hpl
#flux: --nodes=5
#flux: --exclusive
#flux: --time-limit=4h
set -eu
# The last nodes stand by; 0 for none. As many ranks a node as SLOTS says.
spares=${SPARE_NODES:-1}
# Each rank is to have its whole node, where Open MPI's launcher would give few ranks a core each; your own flags win.
case " $* " in *' --launcher-args'* | *' --launcher srun '* | *' --launcher=srun '*) LAUNCHER_ARGS=${LAUNCHER_ARGS-} ;; esac
bind=${LAUNCHER_ARGS---bind-to none}
state=${STATE:-skt-hpl.run}
mkdir -p -m 700 "$state"
# As many open files as the system grants, within reason: some daemons close all that there might be.
most=$(ulimit -H -n)
case $most in unlimited | ??????*) most=65536 ;; esac
ulimit -S -n "$most"
for host in $(flux hostlist --expand local); do
    echo "$host slots=${SLOTS:-1}"
done >"$state/flux.hosts"
program=${HPL_PROGRAM:-skt-hpl}
# The remote shell: FLUX_RSH; else that of the folder this is submitted from, of the clone the program was built in, or of where
# scripts/install.sh has put the program.
rsh=${FLUX_RSH:-}
folder=$(dirname "$(readlink -f "$(type -P "$program")")")
for place in . "$folder/../.." "$folder/../../.." "$folder/../share/skt-hpl"; do
    if [[ -z $rsh && -x $place/hpl-configs/flux-rsh ]]; then rsh=$place/hpl-configs/flux-rsh; fi
done
exec "$program" run --hosts "$state/flux.hosts" --spare-nodes "$spares" --state "$state" --launcher-args "$bind" \
    --rsh "${rsh:-flux-rsh}" --time-limit "${TIME_LIMIT:-230m}" "$@"
