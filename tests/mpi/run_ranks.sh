#!/bin/sh
# run_ranks.sh RANKS PROGRAM [ARGUMENT...]: the program on so many ranks of this machine, however
# many cores it has. Fails if any rank does, and then does not wait for the others. MPI's files lie
# in a folder of their own, which is deleted.
set -eu
ranks=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT INT TERM

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_plm_rsh_agent=false  # no other host
export OMPI_MCA_btl="${OMPI_MCA_btl:-self,vader}"
# Containers often forbid ranks to read each other's memory; shared memory does.
export OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMPI_MCA_orte_tmpdir_base="$folder" OMPI_MCA_btl_vader_backing_directory="$folder"
export OMPI_MCA_osc_sm_backing_directory="$folder"

# Each rank says how it ended, also when mpirun ends it. mpirun's own word does not count: with PMIx
# 4.2.2 it sometimes waits for itself for ever (PMIx_server_finalize) after all ranks are gone. Then
# it is killed, and ranks that are left, whom it keeps waiting, with it.
export ROTA_ENDED="$folder/ended"
mkdir "$ROTA_ENDED"
mpirun --timeout 200 -n "$ranks" setpriv --pdeathsig KILL sh -c \
  'trap : TERM; setpriv --pdeathsig KILL "$@"; code=$?
   echo $code >"$ROTA_ENDED/$OMPI_COMM_WORLD_RANK"; exit $code' rank "$@" &
mpirun=$!
(
  while [ "$(ls "$ROTA_ENDED" | wc -l)" -lt "$ranks" ] && ! cat "$ROTA_ENDED"/* | grep -qvx 0; do
    sleep 0.2
  done
  sleep 10
  kill -9 $mpirun
) 2>/dev/null &
watch=$!
wait $mpirun || true
kill $watch 2>/dev/null || true

good=$(cat "$ROTA_ENDED"/* 2>/dev/null | grep -cx 0 || true)
[ "$good" = "$ranks" ] || { echo "$good of $ranks ranks ended well" >&2; exit 1; }
