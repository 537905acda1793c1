//go:build release

package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// With the tag release, since it compiles everything anew. What people download: the binary says
// what it is, and the licences are beside it.
func TestArchive(t *testing.T) {
	t.Parallel()
	commit := strings.Repeat("ab", 20)
	s := &Source{Root: root, Version: "v0.0.1-test", Commit: commit, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	p := Platform{OS: runtime.GOOS, Arch: runtime.GOARCH}
	out := t.TempDir()
	require.NoError(t, s.Make(t.Context(), out, p))
	sums, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(sums), s.Name(p)))

	packed, err := os.ReadFile(filepath.Join(out, s.Name(p)+".tar.gz"))
	require.NoError(t, err)
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	files := map[string][]byte{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}

		require.NoError(t, err)
		require.Equal(t, s.Time, h.ModTime.UTC(), h.Name)
		name, ok := strings.CutPrefix(h.Name, s.Name(p)+"/")
		require.True(t, ok, h.Name)
		files[name], err = io.ReadAll(r)
		require.NoError(t, err)
	}

	for _, name := range []string{"LICENSE", "THIRD_PARTY_NOTICES", "CHANGELOG.md", "sbom.cdx.json", "escrow-relayer"} {
		require.NotEmpty(t, files[name], name)
	}

	bin := filepath.Join(t.TempDir(), "escrow-relayer")
	require.NoError(t, os.WriteFile(bin, files["escrow-relayer"], 0o700))
	said, err := exec.CommandContext(t.Context(), bin, "version").CombinedOutput()
	require.NoError(t, err, "%s", said)
	for _, what := range []string{s.Version, commit, "2026-01-02T03:04:05Z"} {
		require.Contains(t, string(said), what)
	}

	here, err := filepath.Abs(root)
	require.NoError(t, err)
	require.False(t, bytes.Contains(files["escrow-relayer"], []byte(here)),
		"the binary names the folder that it was built in")
}
