// Command release makes the archives of a release, or the notices of what is linked.
//
//	go run ./internal/release/cmd/release -out dist [-only linux/amd64] [-verify]
//	go run ./internal/release/cmd/release -notices
//	go run ./internal/release/cmd/release -sbom FILE -only linux/amd64     for the image
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/fusion-prime/escrow-relayer/internal/release"
)

func main() {
	out := flag.String("out", "dist", "folder to write to")
	only := flag.String("only", "", "one platform, as linux/amd64; without it all")
	verify := flag.Bool("verify", false, "build everything a second time elsewhere, and compare")
	notices := flag.Bool("notices", false, "write deploy/THIRD_PARTY_NOTICES and nothing else")
	sbom := flag.String("sbom", "", "write the SBOM of one platform to this file and nothing else")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *out, *only, *sbom, *verify, *notices)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, only, sbom string, verify, notices bool) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}

	if notices {
		return write(ctx, root, "deploy/THIRD_PARTY_NOTICES", release.Notices, release.Platforms...)
	}

	s, err := release.ReadSource(ctx, root)
	if err != nil {
		return err
	}

	var platforms []release.Platform
	for _, p := range release.Platforms {
		if only == "" || only == p.OS+"/"+p.Arch {
			platforms = append(platforms, p)
		}
	}

	if len(platforms) == 0 {
		return fmt.Errorf("-only %s: no such platform", only)
	}

	if sbom != "" {
		list := func(all []release.Module) ([]byte, error) { return release.SBOM(all, s.Version, s.Time) }
		return write(ctx, root, sbom, list, platforms[0])
	}

	if err := s.Make(ctx, out, platforms...); err != nil {
		return err
	}

	fmt.Printf("%d archives of %s (%s) in %s\n", len(platforms), s.Version, s.Commit, out)
	if !verify {
		return nil
	}

	if err := s.Verify(ctx, out, platforms...); err != nil {
		return err
	}

	fmt.Println("built a second time elsewhere: the same bytes")

	return nil
}

// write puts what a list of modules is in some form into a file.
func write(ctx context.Context, root, file string, form func([]release.Module) ([]byte, error),
	platforms ...release.Platform) error {
	modules, err := release.Modules(ctx, root, platforms...)
	if err != nil {
		return err
	}

	text, err := form(modules)
	if err != nil {
		return err
	}

	return os.WriteFile(file, text, 0o644)
}
