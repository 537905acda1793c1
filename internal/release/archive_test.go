//go:build release

package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/validate"
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
	sums, err := s.Make(t.Context(), out, p)
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(sums, s.name(p)))

	files := s.unpacked(t, out, s.name(p)+".tar.gz", s.name(p))
	for _, name := range []string{"LICENSE", "deploy/THIRD_PARTY_NOTICES", "CHANGELOG.md", "README.md", ".env.example",
		"deploy/runbooks/lag.md", "deploy/grafana/dashboard.json", "deploy/prometheus/alerts.yaml", "sbom.cdx.json",
		"escrow-relayer"} {
		require.NotEmpty(t, files[name], name)
	}

	chart := s.unpacked(t, out, "escrow-relayer-0.0.1-test.tgz", "escrow-relayer")
	require.Contains(t, string(chart["Chart.yaml"]), "\nversion: 0.0.1-test\nappVersion: v0.0.1-test\n")
	require.Equal(t, files["deploy/grafana/dashboard.json"], chart["files/dashboard.json"])
	s.checkImage(t, out, p, files["escrow-relayer"])

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

// unpacked are the files of an archive, by their path below its folder.
func (s *Source) unpacked(t *testing.T, out, name, folder string) map[string][]byte {
	t.Helper()
	packed, err := os.ReadFile(filepath.Join(out, name))
	require.NoError(t, err)
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	files := map[string][]byte{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}

		require.NoError(t, err)
		require.Equal(t, s.Time, h.ModTime.UTC(), h.Name)
		path, ok := strings.CutPrefix(h.Name, folder+"/")
		require.True(t, ok, h.Name)
		files[path], err = io.ReadAll(r)
		require.NoError(t, err)
	}
}

// checkImage requires an image of the platform, which runs the archive's binary without privileges, and trusts what
// Mozilla trusts.
func (s *Source) checkImage(t *testing.T, out string, p Platform, binary []byte) {
	t.Helper()
	dir := t.TempDir()
	tape := exec.CommandContext(t.Context(), "tar", "-xf", filepath.Join(out, "escrow-relayer_"+s.Version+"_image.tar"),
		"-C", dir)
	text, err := tape.CombinedOutput()
	require.NoError(t, err, "%s", text)
	index, err := layout.ImageIndexFromPath(dir)
	require.NoError(t, err)
	require.NoError(t, validate.Index(index))
	images, err := partial.FindImages(index, func(d v1.Descriptor) bool { return d.Platform.Architecture == p.Arch })
	require.NoError(t, err)
	require.Len(t, images, 1)

	config, err := images[0].ConfigFile()
	require.NoError(t, err)
	require.Equal(t, "65532:65532", config.Config.User)
	require.Equal(t, s.Time, config.Created.UTC())
	root := tar.NewReader(mutate.Extract(images[0]))
	found := map[string][]byte{}
	for h, err := root.Next(); !errors.Is(err, io.EOF); h, err = root.Next() {
		require.NoError(t, err)
		found["/"+h.Name], err = io.ReadAll(root)
		require.NoError(t, err)
	}

	require.True(t, bytes.Equal(binary, found[config.Config.Entrypoint[0]]))
	require.NotEmpty(t, found["/usr/share/doc/escrow-relayer/THIRD_PARTY_NOTICES"])
	require.True(t, x509.NewCertPool().AppendCertsFromPEM(found["/etc/ssl/certs/ca-certificates.crt"]))
}
