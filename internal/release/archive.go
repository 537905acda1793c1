package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Source is the commit that is released.
type Source struct {
	Root, Version, Commit string
	Time                  time.Time // of the commit: the date of everything that is made of it
}

// ErrDirty means that the tree is not what the commit says.
var ErrDirty = errors.New("the tree has changes: commit them, or the release is of no commit")

// ReadSource asks git. A tree with changes is ErrDirty.
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
	s = Source{Root: root, Version: git("describe", "--tags", "--always"), Commit: git("rev-parse", "HEAD")}
	when, status := git("show", "-s", "--format=%cI", "HEAD"), git("status", "--porcelain")
	if err != nil {
		return s, err
	}

	if status != "" {
		return s, ErrDirty
	}

	if s.Time, err = time.Parse(time.RFC3339, when); err != nil {
		return s, fmt.Errorf("read the time of the commit: %w", err)
	}

	s.Time = s.Time.UTC()

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

// Name of a platform's archive, without .tar.gz.
func (s *Source) Name(p Platform) string {
	return fmt.Sprintf("escrow-relayer_%s_%s_%s", s.Version, p.OS, p.Arch)
}

// Make writes the archives of some platforms, an SBOM for each and SHA256SUMS into a folder.
func (s *Source) Make(ctx context.Context, out string, platforms ...Platform) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}

	sums := map[string][]byte{}
	for _, p := range platforms {
		modules, err := Modules(ctx, s.Root, p)
		if err != nil {
			return err
		}

		parts, err := SBOM(modules, s.Version, s.Time)
		if err != nil {
			return err
		}

		archive, err := s.archive(ctx, p, parts)
		if err != nil {
			return err
		}

		sums[s.Name(p)+".tar.gz"], sums[s.Name(p)+".cdx.json"] = archive, parts
	}

	var list strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		if err := os.WriteFile(filepath.Join(out, name), sums[name], 0o644); err != nil {
			return err
		}

		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256(sums[name]), name)
	}

	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), []byte(list.String()), 0o644)
}

// archive is a tar.gz of the binary and what goes with it.
func (s *Source) archive(ctx context.Context, p Platform, parts []byte) ([]byte, error) {
	dir, err := os.MkdirTemp("", "escrow-release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := s.Build(ctx, p, filepath.Join(dir, "escrow-relayer")); err != nil {
		return nil, err
	}

	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	zip.ModTime = s.Time
	files := tar.NewWriter(zip)
	add := func(name string, mode int64, text []byte) error {
		h := &tar.Header{Name: s.Name(p) + "/" + name, Mode: mode, Size: int64(len(text)), ModTime: s.Time,
			Format: tar.FormatUSTAR}
		return errors.Join(files.WriteHeader(h), write(files, text))
	}
	for _, f := range []struct {
		name, from string
		mode       int64
	}{
		{"escrow-relayer", filepath.Join(dir, "escrow-relayer"), 0o755},
		{"LICENSE", filepath.Join(s.Root, "LICENSE"), 0o644},
		{"THIRD_PARTY_NOTICES", filepath.Join(s.Root, "deploy/THIRD_PARTY_NOTICES"), 0o644},
		{"CHANGELOG.md", filepath.Join(s.Root, "CHANGELOG.md"), 0o644},
	} {
		text, err := os.ReadFile(f.from)
		if err != nil {
			return nil, err
		}

		if err := add(f.name, f.mode, text); err != nil {
			return nil, err
		}
	}

	if err := errors.Join(add("sbom.cdx.json", 0o644, parts), files.Close(), zip.Close()); err != nil {
		return nil, err
	}

	return b.Bytes(), nil
}

func write(w *tar.Writer, text []byte) error {
	_, err := w.Write(text)
	return err
}

// Verify makes some platforms again from a clone in another folder, and compares every byte with what Make wrote.
func (s *Source) Verify(ctx context.Context, out string, platforms ...Platform) error {
	dir, err := os.MkdirTemp("", "escrow-release-again-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	clone := exec.CommandContext(ctx, "git", "clone", "--quiet", "--no-local", s.Root, filepath.Join(dir, "source"))
	if text, err := clone.CombinedOutput(); err != nil {
		return fmt.Errorf("clone to build again: %w: %s", err, text)
	}

	again := *s
	again.Root = filepath.Join(dir, "source")
	if err := again.Make(ctx, filepath.Join(dir, "out"), platforms...); err != nil {
		return err
	}

	for _, p := range platforms {
		for _, kind := range []string{".tar.gz", ".cdx.json"} {
			a, err := os.ReadFile(filepath.Join(out, s.Name(p)+kind))
			if err != nil {
				return err
			}

			b, err := os.ReadFile(filepath.Join(dir, "out", s.Name(p)+kind))
			if err != nil {
				return err
			}

			if !bytes.Equal(a, b) {
				return fmt.Errorf("%s%s: built twice, and it differs", s.Name(p), kind)
			}
		}
	}

	return nil
}
