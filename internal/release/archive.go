package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// Source is the commit that is released.
type Source struct {
	Root, Version, Commit string
	Time                  time.Time // of the commit: the date of everything that is made of it
}

// ErrDirty means that the tree is not what the commit says.
var ErrDirty = errors.New("the tree has changes: commit them, or the release is of no commit")

// ReadSource asks git. A tree with changes is ErrDirty, and its version says so.
func ReadSource(ctx context.Context, root string) (s Source, err error) {
	git := func(args ...string) string {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = root
		out, failed := cmd.Output()
		if failed != nil && err == nil {
			err = fmt.Errorf("git %s: %w", strings.Join(args, " "), failed)
		}

		return strings.TrimSpace(string(out))
	}
	// How short git makes a commit by itself differs between clones, and with it the bytes.
	s = Source{Root: root, Version: git("describe", "--tags", "--always", "--abbrev=12", "--dirty"),
		Commit: git("rev-parse", "HEAD")}
	when, status := git("show", "-s", "--format=%cI", "HEAD"), git("status", "--porcelain")
	if err != nil {
		return s, err
	}

	if s.Time, err = time.Parse(time.RFC3339, when); err != nil {
		return s, fmt.Errorf("read the time of the commit: %w", err)
	}

	s.Time = s.Time.UTC()
	if status != "" {
		return s, ErrDirty
	}

	return s, nil
}

// Build makes one binary. It names version, commit and time, and nothing of the machine that built it.
func (s *Source) Build(ctx context.Context, p Platform, out string) error {
	flags := fmt.Sprintf("-s -w -buildid= -X main.version=%s -X main.commit=%s -X main.date=%s", s.Version, s.Commit,
		s.Time.Format(time.RFC3339))
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags,
		"-o", out, Package)
	cmd.Dir, cmd.Env, cmd.Stderr = s.Root, p.environ(), os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build for %s/%s: %w", p.OS, p.Arch, err)
	}

	return nil
}

// name of what is made of the source, for one platform.
func (s *Source) name(p Platform) string {
	return fmt.Sprintf("escrow-relayer_%s_%s_%s", s.Version, p.OS, p.Arch)
}

// Make writes into a folder: for each platform an archive and an SBOM; of the Linux ones an image; the Helm chart; and
// SHA256SUMS of all of them, whose text it returns.
func (s *Source) Make(ctx context.Context, out string, platforms ...Platform) (string, error) {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}

	chart, err := s.chart()
	if err != nil {
		return "", err
	}

	made := map[string][]byte{"escrow-relayer-" + s.semantic() + ".tgz": chart}
	var images []mutate.IndexAddendum
	for _, p := range platforms {
		b, err := s.build(ctx, p)
		if err != nil {
			return "", err
		}

		archive, err := s.archive(s.name(p), slices.Concat(b.program, b.papers, b.operation))
		if err != nil {
			return "", err
		}

		made[s.name(p)+".tar.gz"], made[s.name(p)+".cdx.json"] = archive, b.parts
		if p.OS != "linux" {
			continue
		}

		image, err := s.image(p, slices.Concat(b.program, b.papers))
		if err != nil {
			return "", fmt.Errorf("make the image of %s: %w", p.Arch, err)
		}

		images = append(images, image)
	}

	if made["escrow-relayer_"+s.Version+"_image.tar"], err = s.layout(images); err != nil {
		return "", fmt.Errorf("write the image: %w", err)
	}

	var sums strings.Builder
	for _, name := range slices.Sorted(maps.Keys(made)) {
		if err := os.WriteFile(filepath.Join(out, name), made[name], 0o644); err != nil {
			return "", err
		}

		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(made[name]), name)
	}

	return sums.String(), os.WriteFile(filepath.Join(out, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

// file of an archive.
type file struct {
	name string
	mode int64
	text []byte
}

// built is what a platform's archive and image consist of.
type built struct {
	program, papers, operation []file
	parts                      []byte // the SBOM, which papers has too
}

func (s *Source) build(ctx context.Context, p Platform) (b built, err error) {
	modules, err := Modules(ctx, s.Root, p)
	if err != nil {
		return b, err
	}

	if b.parts, err = SBOM(modules, s.Version, s.Time); err != nil {
		return b, err
	}

	dir, err := os.MkdirTemp("", "escrow-release-")
	if err != nil {
		return b, err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "escrow-relayer")
	if err := s.Build(ctx, p, binary); err != nil {
		return b, err
	}

	program, err := os.ReadFile(binary)
	if err != nil {
		return b, err
	}

	b.program = []file{{"escrow-relayer", 0o755, program}}
	b.papers, err = s.files("LICENSE", "deploy/THIRD_PARTY_NOTICES")
	if err != nil {
		return b, err
	}

	b.papers = append(b.papers, file{"sbom.cdx.json", 0o644, b.parts})
	b.operation, err = s.files("README.md", "CHANGELOG.md", ".env.example", "deploy/README.md", "deploy/metrics.md",
		"deploy/slo.md", "deploy/watching.md", "deploy/chains.example.yaml", "deploy/runbooks", "deploy/prometheus",
		"deploy/grafana")

	return b, err
}

// files reads files, and what lies below folders, of the source. Each keeps its path.
func (s *Source) files(paths ...string) (all []file, err error) {
	for _, path := range paths {
		err := fs.WalkDir(os.DirFS(s.Root), path, func(name string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}

			text, err := os.ReadFile(filepath.Join(s.Root, name))
			all = append(all, file{name, 0o644, text})

			return err
		})
		if err != nil {
			return nil, err
		}
	}

	return all, nil
}

// archive is a tar.gz of files below a folder.
func (s *Source) archive(folder string, files []file) ([]byte, error) {
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	zip.ModTime = s.Time
	err := errors.Join(s.tar(zip, folder+"/", files), zip.Close())

	return b.Bytes(), err
}

// tar writes files, each with a prefix before its name.
func (s *Source) tar(to io.Writer, prefix string, files []file) error {
	w := tar.NewWriter(to)
	for _, f := range files {
		h := &tar.Header{Name: prefix + f.name, Mode: f.mode, Size: int64(len(f.text)), ModTime: s.Time,
			Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return err
		}

		if _, err := w.Write(f.text); err != nil {
			return err
		}
	}

	return w.Close()
}
