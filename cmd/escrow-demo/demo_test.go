package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// programs is a folder with the demo and the relayer.
var programs string

func TestMain(m *testing.M) {
	var err error
	if programs, err = os.MkdirTemp("", "escrow-demo-bin-"); err != nil {
		panic(err)
	}

	for name, folder := range map[string]string{"escrow-demo": ".", "escrow-relayer": "../escrow-relayer"} {
		if err := lab.Build(context.Background(), folder, filepath.Join(programs, name)); err != nil {
			panic(err)
		}
	}

	code := m.Run()
	_ = os.RemoveAll(programs)
	os.Exit(code)
}

// demonstration is a running demo. Its temporary files go to a folder of its own.
type demonstration struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
	said  strings.Builder
	dir   string
}

func startDemo(t *testing.T, args ...string) *demonstration {
	// not t.TempDir: Postgres, which may run as another user, cannot get in there
	dir, err := os.MkdirTemp("", "escrow-demo-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o777))
	d := &demonstration{t: t, dir: dir}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	t.Cleanup(cancel)
	d.cmd = exec.CommandContext(ctx, filepath.Join(programs, "escrow-demo"), args...)
	d.cmd.Env = append(os.Environ(), "TMPDIR="+d.dir)
	out, err := d.cmd.StdoutPipe()
	require.NoError(t, err)
	d.cmd.Stderr = d.cmd.Stdout
	require.NoError(t, d.cmd.Start())
	d.lines = bufio.NewScanner(out)

	return d
}

// until reads until a line has the words, and returns it; no words: until the end.
func (d *demonstration) until(words string) string {
	for d.lines.Scan() {
		d.said.WriteString(d.lines.Text() + "\n")
		if words != "" && strings.Contains(d.lines.Text(), words) {
			return d.lines.Text()
		}
	}

	require.Empty(d.t, words, "it ended without these words, and said:\n%s", &d.said)

	return ""
}

// end waits for the end, and sees that nothing is left: no file, no relayer.
func (d *demonstration) end(url string) (code int) {
	d.until("")
	_ = d.cmd.Wait()
	left, err := os.ReadDir(d.dir)
	require.NoError(d.t, err)
	require.Empty(d.t, left, d.said.String())

	ctx, cancel := context.WithTimeout(d.t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/healthz", nil)
	require.NoError(d.t, err)
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}

	require.ErrorIs(d.t, err, syscall.ECONNREFUSED)

	return d.cmd.ProcessState.ExitCode()
}

func (d *demonstration) url() string {
	_, url, ok := strings.Cut(d.until("relayers are ready"), "each has the same page: ")
	require.True(d.t, ok)
	first, _, _ := strings.Cut(url, " ")

	return first
}

// judged requires a verdict for each chain: everything was published, of the factory that was added, too.
func (d *demonstration) judged() {
	for chain, factories := range map[string]string{"1337": "2", "1338": "1"} {
		require.Regexp(d.t, `(?m)^audit     chain `+chain+`: every event.*, in order.*
          factories `+factories+`, escrows [1-9]\d*, emitted [1-9]\d*, .*missing 0, duplicated \d+, unknown 0, `+
			`out of order 0, malformed 0\n`, d.said.String())
	}

	added := regexp.MustCompile(`relayer-\d is started again, and adds a second factory to chain 1337: (0x\w{40})`).
		FindStringSubmatch(d.said.String())
	require.NotNil(d.t, added, d.said.String())
	require.Regexp(d.t, `relayer-\d added `+added[1]+` to chain 1337: its past, from block \d+ on, was read within `,
		d.said.String())
}

// What is told happens, and each chain is judged.
func TestDemo(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "--duration", "15s", "--seed", "3")
	require.Zero(t, d.end(d.url()), d.said.String())
	t.Log(d.said.String())
	d.judged()
	for _, words := range []string{
		`a month passes`, `SIGKILL to (relayer-\d), the leader of chain 1337\n(?s:.*)relayer-\d leads chain 1337 `,
		`SIGTERM to (relayer-\d), the leader of chain 1338\n(?s:.*)relayer-\d leads chain 1338 `, `stopped cleanly in`,
		`chain 1337 takes back its last 6 blocks`, `one retraction, on the topic of its own`,
		`result    every event was published`,
	} {
		require.Regexp(t, words, d.said.String())
	}
}
