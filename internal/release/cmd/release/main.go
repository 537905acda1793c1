// Command release makes what a release has, or the image of one platform, or the notices of what is linked.
//
//	go run ./internal/release/cmd/release -out dist [-only linux/amd64]
//	go run ./internal/release/cmd/release -image bin/image.tar -only linux/amd64
//	go run ./internal/release/cmd/release -notices
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/fusion-prime/escrow-relayer/internal/release"
)

func main() {
	out := flag.String("out", "dist", "folder to write to")
	only := flag.String("only", "", "one platform, as linux/amd64; without it all")
	notices := flag.Bool("notices", false, "write deploy/THIRD_PARTY_NOTICES and nothing else")
	image := flag.String("image", "",
		"write the image of one platform to this file and nothing else; the tree may have changes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *out, *only, *image, *notices)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, only, image string, notices bool) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}

	if notices {
		return writeNotices(ctx, root)
	}

	s, err := release.ReadSource(ctx, root)
	if err != nil && (image == "" || !errors.Is(err, release.ErrDirty)) {
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

	if image != "" {
		return s.Local(ctx, image, platforms[0])
	}

	sums, err := s.Make(ctx, out, platforms...)
	if err == nil {
		fmt.Printf("%s (%s) in %s:\n%s", s.Version, s.Commit, out, sums)
	}

	return err
}

func writeNotices(ctx context.Context, root string) error {
	modules, err := release.Modules(ctx, root, release.Platforms...)
	if err != nil {
		return err
	}

	text, err := release.Notices(modules)
	if err != nil {
		return err
	}

	return os.WriteFile("deploy/THIRD_PARTY_NOTICES", text, 0o644)
}
