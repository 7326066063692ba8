# Runs a server until it exits or stdin is closed, which happens at the latest when the owner of the pipe dies.
# Usage: sh -c SCRIPT watchdog DIRECTORY SERVER [ARG]...
directory=$1
shift
exec 3<&0
"$@" 3<&- </dev/null &
server=$!
{
    while read -r _ <&3; do :; done
    # The shell below must not end this part before the directory is removed.
    trap '' TERM
    # Repeated, because the server ignores signals until it has installed its handlers.
    signal=QUIT
    tries=0
    while kill -$signal "$server" 2>/dev/null; do
        sleep 0.05
        tries=$((tries + 1))
        [ $tries -lt 200 ] || signal=KILL
    done
    rm -rf "$directory"
} &
watcher=$!
exec 3<&-
wait "$server"
status=$?
kill "$watcher" 2>/dev/null
wait "$watcher"
exit "$status"
