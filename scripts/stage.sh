# Sourced by scripts that make something in stages; notes of what is done lie in $data/done.
#
# stage NAME OUTPUT INPUT... -- COMMAND...
#
# Runs the command unless OUTPUT exists, was made by the same command, and no INPUT is newer than
# the note of that. The note is written after success, so a stage cut short runs again.
stage() {
    local name=$1 output=$2 inputs=()
    shift 2
    while [[ $1 != -- ]]; do
        inputs+=("$1")
        shift
    done
    shift
    local done_note=$data/done/$name stale=no input
    if [[ ! -e $output || ! -e $done_note || $(<"$done_note") != "$*" ]]; then
        stale=yes
    else
        for input in ${inputs[@]+"${inputs[@]}"}; do
            [[ $input -nt $done_note ]] && stale=yes
        done
    fi
    if [[ $stale == no ]]; then
        echo "== $name: done before ($output)"
        return
    fi
    echo "== $name"
    local started=$SECONDS status=0
    rm -f "$done_note"
    "$@" || status=$?
    if ((status == 75)); then
        echo "$0: stopped and saved; run it again to go on" >&2
        exit 75
    elif ((status != 0)); then
        echo "$0: the stage '$name' failed with status $status; the message is above" >&2
        exit "$status"
    fi
    mkdir -p "$(dirname "$done_note")"
    echo "$*" >"$done_note"
    echo "   $((SECONDS - started)) s"
}
