package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The fakes keep one file a service, whose content is its TOTAL_PARTITIONS, and write down every
// call. A call whose text contains the line of the file `fail` fails.
const fakeGcloud = `#!/usr/bin/env bash
set -eu
echo "gcloud $*" >>"$FAKE/calls"
if [[ -e $FAKE/fail && "gcloud $*" == *"$(<"$FAKE/fail")"* ]]; then echo "gcloud: quota exceeded" >&2; exit 1; fi
case "$1 $2 $3" in
  "run services describe")
    [[ -e $FAKE/services/$4 ]] || { echo "ERROR: (gcloud.run.services.describe) Cannot find service [$4]" >&2; exit 1; }
    printf 'spec:\n  template:\n    spec:\n      containers:\n      - env:\n        - name: PARTITION_NUMBER\n          value: "9"\n        - name: TOTAL_PARTITIONS\n          value: "%s"\n' "$(<"$FAKE/services/$4")"
    ;;
  "run services update") sed -n 's/.*--update-env-vars=TOTAL_PARTITIONS=\([0-9]*\).*/\1/p' <<<"$*" >"$FAKE/services/$4" ;;
  "run services replace") awk '/name: TOTAL_PARTITIONS$/ { getline; gsub(/[^0-9]/, ""); print; exit }' "$4" >"$FAKE/services/$(basename "$4" .yaml)" ;;
  "run services delete") rm "$FAKE/services/$4" ;;
  *) exit 64 ;;
esac
`

const fakeRelayer = `#!/usr/bin/env bash
set -eu
echo "escrow-relayer $*" >>"$FAKE/calls"
if [[ -e $FAKE/fail && "escrow-relayer $*" == *"$(<"$FAKE/fail")"* ]]; then echo "210 slots are not served" >&2; exit 1; fi
`

// fakeFleet is a folder with the fakes and their state.
type fakeFleet struct {
	t   *testing.T
	dir string
}

func newFakeFleet(t *testing.T, n int) fakeFleet {
	f := fakeFleet{t, t.TempDir()}
	for name, text := range map[string]string{"bin/gcloud": fakeGcloud, "bin/escrow-relayer": fakeRelayer, "calls": ""} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(f.dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o755))
	}

	require.NoError(t, os.Mkdir(filepath.Join(f.dir, "services"), 0o755))
	for i := range n {
		f.write(fmt.Sprintf("services/escrow-relayer-%d", i), fmt.Sprint(n))
	}

	return f
}

func (f fakeFleet) write(name, text string) {
	require.NoError(f.t, os.WriteFile(filepath.Join(f.dir, name), []byte(text+"\n"), 0o644))
}

// manifests writes what `plan manifests` would.
func (f fakeFleet) manifests(n int) string {
	in := input()
	in.Partitions = n
	manifests, err := Manifests(in)
	require.NoError(f.t, err)
	dir := f.t.TempDir()
	for _, m := range manifests {
		require.NoError(f.t, os.WriteFile(filepath.Join(dir, m.Name+".yaml"), m.YAML, 0o644))
	}

	return dir
}

// run runs the script and returns its exit code, what it said, and the calls that it made since the last run.
func (f fakeFleet) run(args ...string) (code int, output string, calls []string) {
	f.write("calls", "")
	cmd := exec.CommandContext(f.t.Context(), "bash", append([]string{"repartition.sh"}, args...)...)
	cmd.Env = append(os.Environ(), "FAKE="+f.dir, "PATH="+filepath.Join(f.dir, "bin")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(f.t, err, &exit)
		code = exit.ExitCode()
	}

	text, err := os.ReadFile(filepath.Join(f.dir, "calls"))
	require.NoError(f.t, err)

	return code, string(out), strings.Split(strings.TrimSpace(string(text)), "\n")
}

// changes are the calls that change something or wait.
func changes(calls []string) (found []string) {
	for _, c := range calls {
		if !strings.Contains(c, " describe ") && !strings.Contains(c, "plan move") {
			found = append(found, c)
		}
	}

	return found
}

func (f fakeFleet) totals() map[string]string {
	entries, err := os.ReadDir(filepath.Join(f.dir, "services"))
	require.NoError(f.t, err)
	totals := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(f.dir, "services", e.Name()))
		require.NoError(f.t, err)
		totals[strings.TrimPrefix(e.Name(), "escrow-relayer-")] = strings.TrimSpace(string(text))
	}

	return totals
}

const (
	waitFor  = "escrow-relayer plan wait --timeout 25m --lag 200"
	changeTo = " --quiet --container=relayer --update-env-vars=TOTAL_PARTITIONS="
)

func TestRepartitionGrows(t *testing.T) {
	t.Parallel()
	f := newFakeFleet(t, 3)
	dir := f.manifests(4)
	code, out, calls := f.run("--from", "3", "--to", "4", "--manifests", dir, "--apply", "--region", "us-central1")
	require.Zero(t, code, out)
	require.Equal(t, []string{
		waitFor,
		"gcloud run services replace " + dir + "/escrow-relayer-3.yaml --region=us-central1 --quiet",
		waitFor + " --instance escrow-relayer-3 --total 4",
		"gcloud run services update escrow-relayer-0 --region=us-central1" + changeTo + "4", waitFor +
			" --instance escrow-relayer-0 --total 4",
		"gcloud run services update escrow-relayer-1 --region=us-central1" + changeTo + "4", waitFor +
			" --instance escrow-relayer-1 --total 4",
		"gcloud run services update escrow-relayer-2 --region=us-central1" + changeTo + "4", waitFor +
			" --instance escrow-relayer-2 --total 4",
	}, changes(calls))
	require.Equal(t, map[string]string{"0": "4", "1": "4", "2": "4", "3": "4"}, f.totals())

	known := relayerFlags(t, "plan")
	for _, c := range changes(calls) {
		if strings.HasPrefix(c, "escrow-relayer") {
			for _, used := range flagUse.FindAllStringSubmatch(c, -1) {
				require.Contains(t, known, used[1], c)
			}
		}
	}

	code, out, calls = f.run("--from", "3", "--to", "4", "--manifests", dir, "--apply")
	require.Zero(t, code, out)
	require.Equal(t, []string{
		waitFor + " --instance escrow-relayer-3 --total 4", waitFor + " --instance escrow-relayer-0 --total 4",
		waitFor + " --instance escrow-relayer-1 --total 4", waitFor + " --instance escrow-relayer-2 --total 4",
	}, changes(calls), "a second run has nothing to do but to look")
}

func TestRepartitionShrinks(t *testing.T) {
	t.Parallel()
	f := newFakeFleet(t, 4)
	code, out, calls := f.run("--from", "4", "--to", "2", "--apply")
	require.Zero(t, code, out)
	require.Equal(t, []string{
		waitFor,
		"gcloud run services update escrow-relayer-1" + changeTo + "2", waitFor + " --instance escrow-relayer-1 --total 2",
		"gcloud run services update escrow-relayer-0" + changeTo + "2", waitFor + " --instance escrow-relayer-0 --total 2",
		"gcloud run services delete escrow-relayer-3 --quiet", waitFor + " --gone escrow-relayer-3",
		"gcloud run services delete escrow-relayer-2 --quiet", waitFor + " --gone escrow-relayer-2",
	}, changes(calls))
	require.Equal(t, map[string]string{"0": "2", "1": "2"}, f.totals())

	code, out, calls = f.run("--from", "4", "--to", "2", "--apply")
	require.Zero(t, code, out)
	require.Equal(t, []string{waitFor + " --instance escrow-relayer-1 --total 2", waitFor +
		" --instance escrow-relayer-0 --total 2"}, changes(calls))
}

func TestRepartitionChangesNothingByDefault(t *testing.T) {
	t.Parallel()
	f := newFakeFleet(t, 3)
	code, out, calls := f.run("--from", "3", "--to", "5", "--manifests", f.manifests(5))
	require.Zero(t, code, out)
	require.Equal(t, []string{"escrow-relayer plan move --from 3 --to 5 --strategy modulo"}, calls)
	require.Contains(t, out, "gcloud run services replace")
	require.Contains(t, out, "escrow-relayer-2"+changeTo+"5")
	require.Contains(t, out, "nothing was changed")
	require.Equal(t, map[string]string{"0": "3", "1": "3", "2": "3"}, f.totals())
}

func TestRepartitionStopsAndGoesOnOrBack(t *testing.T) {
	t.Parallel()
	for _, failure := range []string{"--instance escrow-relayer-1 --total 4", "update escrow-relayer-1", "replace"} {
		f := newFakeFleet(t, 3)
		dir := f.manifests(4)
		f.write("fail", failure)
		code, out, calls := f.run("--from", "3", "--to", "4", "--manifests", dir, "--apply")
		require.Equal(t, 1, code, out)
		require.Contains(t, calls[len(calls)-1], failure, "nothing happens after a failure")
		require.Contains(t, out, "STOPPED")
		require.Contains(t, out, "Go on, when mended:  repartition.sh --from 3 --to 4")
		if failure == "replace" {
			require.Contains(t, out, "escrow-relayer-3 in part;", "a service whose revision did not start is there all the same")
		} else {
			require.Contains(t, out, "changed escrow-relayer-0;")
		}

		require.Contains(t, out, "Go back:             repartition.sh --from 4 --to 3")

		require.NoError(t, os.Remove(filepath.Join(f.dir, "fail")))
		code, out, calls = f.run("--from", "4", "--to", "3", "--apply")
		require.Zero(t, code, out)
		require.Equal(t, map[string]string{"0": "3", "1": "3", "2": "3"}, f.totals(), "the way back leads back")
		require.NotContains(t, strings.Join(calls, "\n"), "update escrow-relayer-2", "what was not changed is left alone")
	}
}

func TestRepartitionRefuses(t *testing.T) {
	t.Parallel()
	three, five := newFakeFleet(t, 3).manifests(3), newFakeFleet(t, 3).manifests(5)
	for _, c := range []struct {
		want   string
		totals []string
		args   []string
	}{
		{"neither 3 nor 2", []string{"3", "3", "5"}, []string{"--from", "3", "--to", "2", "--apply"}},
		{"escrow-relayer-3 does not exist", []string{"4", "4", "4"},
			[]string{"--from", "4", "--to", "5", "--apply", "--manifests", five}},
		{"needs --manifests", nil, []string{"--from", "3", "--to", "4"}},
		{"escrow-relayer-3.yaml is missing", nil, []string{"--from", "3", "--to", "4", "--manifests", three}},
		{"is not for TOTAL_PARTITIONS=4", nil, []string{"--from", "3", "--to", "4", "--manifests", five}},
		{"nothing to do", nil, []string{"--from", "3", "--to", "3"}},
		{"numbers from 1 to 2520", nil, []string{"--from", "3", "--to", "0"}},
		{"numbers from 1 to 2520", nil, []string{"--from", "3", "--to", "2521"}},
		{"unknown argument --form", nil, []string{"--form", "3"}},
		{"--to needs a value", nil, []string{"--from", "3", "--to"}},
	} {
		f := newFakeFleet(t, 0)
		for i, total := range c.totals {
			f.write(fmt.Sprintf("services/escrow-relayer-%d", i), total)
		}

		code, out, calls := f.run(c.args...)
		require.Equal(t, 2, code, "%s: %s", c.want, out)
		require.Contains(t, out, c.want)
		require.Empty(t, strings.Join(changes(calls), ""), "%s: nothing may be changed", c.want)
	}
}
