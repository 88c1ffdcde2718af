#!/bin/sh
# The command line as a user sees it: every mistake is exit status 2 and one line
# on standard error that names what was wrong; help and version go to standard
# output. usage: test_main.sh PENSTOCK
set -u
bin=$1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0

complain() {
	echo "FAILED: $*" >&2
	failed=$((failed + 1))
}

# mistake WORD ARGS...: WORD must be in the message.
mistake() {
	word=$1
	shift
	"$bin" "$@" >"$dir/out" 2>"$dir/err"
	status=$?
	[ $status -eq 2 ] || complain "penstock $*: exit status $status"
	[ "$(wc -l <"$dir/err")" -eq 1 ] || complain "penstock $*: not one line: $(cat "$dir/err")"
	[ -s "$dir/out" ] && complain "penstock $*: wrote to standard output"
	grep -qF -e "$word" "$dir/err" || complain "penstock $*: no '$word' in: $(cat "$dir/err")"
}

# success WORD ARGS...: WORD must be in the output.
success() {
	word=$1
	shift
	"$bin" "$@" >"$dir/out" 2>"$dir/err" || complain "penstock $*: exit status $?"
	[ -s "$dir/err" ] && complain "penstock $*: wrote to standard error"
	grep -qF -e "$word" "$dir/out" || complain "penstock $*: no '$word' in the output"
}

mistake "expected a command"
mistake "command 'fly'" fly
mistake "option '--fly'" --fly
mistake "after --help" --help gateway
mistake "IFNAME" gateway
mistake "'wg1'" gateway wg0 wg1
mistake "--fly" gateway wg0 --fly
mistake "--daemon" gateway wg0 --foreground --daemon
mistake "--config" gateway wg0 --config
mistake "'loud'" gateway wg0 --log-level loud
mistake "'sand'" gateway wg0 --sandbox sand
mistake "NAME" bench one two
mistake "--json" bench gateway --json
mistake "--fly" bench --fly
success "usage: penstock COMMAND" --help
success "penstock 0" --version
success "AEAD back end: " --version
success "--no-offload" gateway --help
success "--quick" bench --help

"$bin" gateway --status nosuchif0 >"$dir/out" 2>"$dir/err"
[ $? -eq 1 ] || complain "--status of nothing: exit status"
grep -q "nosuchif0.sock" "$dir/err" || complain "--status of nothing: $(cat "$dir/err")"

# The name under which wg-quick calls it.
ln -s "$(realpath "$bin")" "$dir/penstock-wg"
bin=$dir/penstock-wg
mistake "penstock-wg: IFNAME"
mistake "'wg1'" wg0 wg1
success "WG_QUICK_USERSPACE_IMPLEMENTATION" --help

[ $failed -eq 0 ]
