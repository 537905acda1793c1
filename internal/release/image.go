package release

import (
	"bytes"
	"context"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the unprivileged user of the image, as in distroless images.
const user = "65532:65532"

// Local writes the image of one platform under the name escrow-relayer:local, as `docker load` and
// `crane push` read it.
func (s *Source) Local(ctx context.Context, out string, p Platform) error {
	b, err := s.build(ctx, p)
	if err != nil {
		return err
	}

	image, err := s.image(p, slices.Concat(b.program, b.papers))
	if err != nil {
		return err
	}

	tag, err := name.NewTag("escrow-relayer:local")
	if err != nil {
		return err
	}

	return tarball.WriteToFile(out, tag, image.Add.(v1.Image))
}

// image is of one platform: one layer with the program, its papers, the certificate authorities that Mozilla trusts,
// and the user. There is no base image: nothing else could be attacked, or be another one at the next build.
func (s *Source) image(p Platform, files []file) (a mutate.IndexAddendum, err error) {
	root := []file{
		{"etc/ssl/certs/ca-certificates.crt", 0o644, authorities()},
		{"etc/passwd", 0o644, []byte("nonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")},
	}
	for _, f := range files {
		f.name = "usr/share/doc/escrow-relayer/" + filepath.Base(f.name)
		if f.mode == 0o755 {
			f.name = "usr/local/bin/escrow-relayer"
		}

		root = append(root, f)
	}

	var b bytes.Buffer
	if err := s.tar(&b, "", root); err != nil {
		return a, err
	}

	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return a, err
	}

	made := v1.Time{Time: s.Time}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{Created: made}})
	if err != nil {
		return a, err
	}

	config, err := image.ConfigFile()
	if err != nil {
		return a, err
	}

	config.OS, config.Architecture, config.Created = p.OS, p.Arch, made
	config.Config = v1.Config{
		User: user, Entrypoint: []string{"/usr/local/bin/escrow-relayer"}, Cmd: []string{"run"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "escrow-relayer",
			"org.opencontainers.image.source":   "https://github.com/fusion-prime/escrow-relayer",
			"org.opencontainers.image.licenses": "Apache-2.0 AND LGPL-3.0-only",
			"org.opencontainers.image.version":  s.Version,
			"org.opencontainers.image.revision": s.Commit,
		},
	}
	image, err = mutate.ConfigFile(image, config)

	return mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: config.Platform()}}, err
}

// authorities are in PEM. Those that Mozilla trusts for a part only (before a day, below a name) are left out: a file
// cannot say so.
func authorities() (all []byte) {
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			all = append(all, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})...)
		}
	}

	return all
}

// layout is a tar of an OCI image layout, which registries' and containers' tools read: the image of all platforms.
func (s *Source) layout(images []mutate.IndexAddendum) ([]byte, error) {
	dir, err := os.MkdirTemp("", "escrow-release-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	index := mutate.IndexMediaType(mutate.AppendManifests(empty.Index, images...), types.OCIImageIndex)
	if _, err := layout.Write(dir, index); err != nil {
		return nil, err
	}

	files, err := (&Source{Root: dir}).files(".")
	if err != nil {
		return nil, err
	}

	var b bytes.Buffer
	err = s.tar(&b, "", files)

	return b.Bytes(), err
}
