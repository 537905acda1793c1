package deploy

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// strictGcloud does what Google does, as far as our commands could overlook it: a service with
// ingress internal is not reached by proxy; a service needs its region; a disabled version of a
// secret starts nothing; an unknown flag is refused; manual scaling wants a number.
const strictGcloud = `#!/usr/bin/env bash
set -eu
echo "gcloud $*" >>"$FAKE/calls"
for a in "$@"; do
  case $a in
    run | services | update | proxy | escrow-relayer-[0-9] | --quiet | --region=*) ;;
    --scaling=[0-9] | --scaling=[0-9][0-9] | --scaling=auto) ;;
    *) echo "ERROR: (gcloud) unrecognized arguments: $a" >&2; exit 2 ;;
  esac
done
[[ $* == *--region=* ]] || { echo "ERROR: (gcloud.run.services) Missing required argument [region]" >&2; exit 1; }
case "$1 $2 $3" in
  "run services proxy") echo "ERROR: the service has ingress internal" >&2; exit 1 ;;
  "run services update")
    [[ -e $FAKE/services/$4 ]] || { echo "ERROR: Cannot find service [$4]" >&2; exit 1; }
    for a in "$@"; do if [[ $a == --scaling=* ]]; then echo "${a#--scaling=}" >"$FAKE/services/$4"; fi; done ;;
esac
`

// countingRelayer tells as many instances alive as there are services with an instance, and those that linger.
const countingRelayer = `#!/usr/bin/env bash
set -eu
echo "escrow-relayer $*" >>"$FAKE/calls"
if [[ $1 == status ]]; then
  [[ -e $FAKE/nodatabase ]] && exit 2
  linger=$(cat "$FAKE/linger"); echo $((linger > 0 ? linger - 1 : 0)) >"$FAKE/linger"
  echo '{ "instances": ['
  for s in "$FAKE"/services/*; do
    if [[ $(<"$s") != 0 ]] || ((linger > 0)); then echo '  { "alive": true },'; else echo '  { "alive": false },'; fi
  done
  echo '] }'
  exit 1
fi
`

func TestScale(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	write("bin/gcloud", strictGcloud)
	write("bin/escrow-relayer", countingRelayer)
	write("linger", "2\n")
	for _, s := range []string{"0", "1", "2"} {
		write("services/escrow-relayer-"+s, "1\n")
	}

	run := func(args ...string) (int, string, string) {
		write("calls", "")
		cmd := exec.CommandContext(t.Context(), "bash", append([]string{"scale.sh"}, args...)...)
		cmd.Env = append(os.Environ(), "FAKE="+dir, "SCALE_PAUSE=0.01",
			"PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		code := 0
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			code = exit.ExitCode()
		} else {
			require.NoError(t, err)
		}

		calls, err := os.ReadFile(filepath.Join(dir, "calls"))
		require.NoError(t, err)

		return code, string(out), string(calls)
	}
	scales := func() string {
		s := ""
		for _, n := range []string{"0", "1", "2"} {
			b, err := os.ReadFile(filepath.Join(dir, "services/escrow-relayer-"+n))
			require.NoError(t, err)
			s += strings.TrimSpace(string(b))
		}

		return s
	}

	code, out, calls := run("stop", "--partitions", "3", "--region", "us-central1")
	require.Zero(t, code, out)
	require.Empty(t, calls, "without --apply nothing is done")
	require.Equal(t, 3, strings.Count(out, "--scaling=0"))

	code, out, calls = run("stop", "--partitions", "3", "--region", "us-central1", "--apply")
	require.Zero(t, code, out)
	require.Equal(t, "000", scales())
	require.Contains(t, out, "no instance has a session")
	require.Equal(t, 3, strings.Count(calls, "status --json"), "it waits for those that linger")

	code, out, calls = run("start", "--partitions", "3", "--region", "us-central1", "--apply")
	require.Zero(t, code, out)
	require.Equal(t, "111", scales())
	require.True(t, strings.HasSuffix(calls, "escrow-relayer plan wait --timeout 1500s\n"), calls)

	write("linger", "1000000\n")
	code, out, _ = run("stop", "--partitions", "3", "--region", "us-central1", "--timeout", "3", "--apply")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "3 instances are alive")
	write("nodatabase", "")
	code, out, _ = run("stop", "--partitions", "3", "--region", "us-central1", "--timeout", "3", "--apply")
	require.Equal(t, 1, code, "a database that cannot be asked is no proof")
	require.Contains(t, out, "unknown")
	code, out, _ = run("stop", "--partitions", "3", "--region", "us-central1", "--no-database", "--apply")
	require.Zero(t, code, out)

	for _, bad := range [][]string{{"stop"}, {"--partitions", "3"}, {"stop", "--partitions", "0"},
		{"stop", "--partitions", "3", "--force"}} {
		code, _, calls = run(bad...)
		require.Equal(t, 2, code, "%v", bad)
		require.Empty(t, calls)
	}
}
