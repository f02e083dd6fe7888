# Sourced by scripts that run in stages. A note for each finished stage is in $data/done.
#
# stage NAME OUTPUT INPUT... -- COMMAND...
#
# Skips the command if OUTPUT exists, the same command wrote it, and no INPUT is newer than its note.
# The note is written after success, so an interrupted stage runs again. If n_stages is set, the
# headings show the number of the stage.
#
# For the command, $stage_resumes is "yes" if the same command was interrupted and no INPUT has changed
# since it started: its unfinished results are still valid. A note in $data/started shows this.
stage() {
    local name=$1 output=$2 inputs=()
    shift 2
    while [[ $1 != -- ]]; do
        inputs+=("$1")
        shift
    done
    shift
    local done_note=$data/done/$name started_note=$data/started/$name stale=no input
    if [[ ! -e $output || ! -e $done_note || $(<"$done_note") != "$*" ]]; then
        stale=yes
    else
        for input in ${inputs[@]+"${inputs[@]}"}; do
            [[ $input -nt $done_note ]] && stale=yes
        done
    fi
    stage_number=$((${stage_number:-0} + 1))
    local heading=${n_stages:+$stage_number/$n_stages }$name
    if [[ $stale == no ]]; then
        echo "== $heading: finished earlier ($output)"
        return
    fi
    echo "== $heading"
    local started=$SECONDS status=0
    rm -f "$done_note"
    stage_resumes=no
    if [[ -e $started_note && $(<"$started_note") == "$*" ]]; then
        stage_resumes=yes
        for input in ${inputs[@]+"${inputs[@]}"}; do
            [[ $input -nt $started_note ]] && stage_resumes=no
        done
    fi
    if [[ $stage_resumes == no ]]; then
        mkdir -p "$(dirname "$started_note")"
        echo "$*" >"$started_note"
    fi
    "$@" || status=$?
    # The program exits with 2 if it refuses the unfinished results.
    ((status != 0 && status != 2)) || rm -f "$started_note"
    if ((status == 75)); then
        echo "$0: stopped and saved; run the same command to continue" >&2
        exit 75
    elif ((status != 0)); then
        echo "$0: stage '$name' failed with exit code $status; the error is above" >&2
        exit "$status"
    fi
    mkdir -p "$(dirname "$done_note")"
    echo "$*" >"$done_note"
    echo "   $((SECONDS - started)) s"
}
