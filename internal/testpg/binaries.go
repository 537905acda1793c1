package testpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"

	embedded "github.com/fergusstrange/embedded-postgres"

	"github.com/fusion-prime/escrow-relayer/internal/port"
)

// usual are the folders where packages put the server's programs, which are rarely on PATH.
var usual = []string{
	"/usr/lib/postgresql/*/bin",          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                   // Red Hat
	"/opt/homebrew/opt/postgresql@*/bin", // Homebrew on ARM
	"/usr/local/opt/postgresql@*/bin",    // Homebrew on Intel
	"/opt/homebrew/opt/postgresql/bin",   // Homebrew, unversioned
	"/usr/local/pgsql/bin",               // built from source
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// binaries returns a folder that holds initdb, pg_ctl and postgres.
func binaries(ctx context.Context) (string, error) {
	if dir, ok := find(filepath.SplitList(os.Getenv("PATH")), usual); ok {
		return dir, nil
	}

	dir, err := fetch(ctx)
	if err != nil {
		return "", fmt.Errorf("find Postgres's programs (initdb, pg_ctl, postgres), which are neither on PATH nor in the "+
			"usual places; install the postgresql package: %w", err)
	}

	return dir, nil
}

// find looks in the folders of PATH, in order, then in those that the patterns match, the newest version first.
func find(path, patterns []string) (string, bool) {
	dirs := slices.Clone(path)
	for _, pattern := range patterns {
		matches, _ := filepath.Glob(pattern) // the only error is a malformed pattern
		slices.SortFunc(matches, func(a, b string) int { return version(b) - version(a) })
		dirs = append(dirs, matches...)
	}

	for _, dir := range dirs {
		if complete(dir) {
			return dir, true
		}

		// On PATH there is often a link to one of the programs, beside which the others are.
		if target, err := filepath.EvalSymlinks(filepath.Join(dir, "initdb")); err == nil && complete(filepath.Dir(target)) {
			return filepath.Dir(target), true
		}
	}

	return "", false
}

func complete(dir string) bool {
	for _, program := range []string{"initdb", "pg_ctl", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(dir, program)); err != nil {
			return false
		}
	}

	return dir != ""
}

// version is the last run of digits in the path: 15 of /usr/lib/postgresql/15/bin.
func version(dir string) int {
	all := digits.FindAllString(dir, -1)
	if len(all) == 0 {
		return 0
	}

	n, _ := strconv.Atoi(all[len(all)-1]) // one that is too large is no version

	return n
}

var digits = regexp.MustCompile(`\d+`)

// fetch downloads the server once into a cache. The library can only download and start in one go,
// and its start fails for root; so it is told to start, and what counts is whether the programs are
// there afterwards.
func fetch(ctx context.Context) (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil || os.Geteuid() == 0 { // the server's user cannot read root's home
		cache = filepath.Join(os.TempDir(), "cache")
	}

	cache = filepath.Join(cache, "escrow-relayer", "postgres-"+runtime.GOARCH)
	dir = filepath.Join(cache, "bin")
	if complete(dir) {
		return dir, nil
	}

	if err := ctx.Err(); err != nil {
		return "", err
	}

	scratch, err := os.MkdirTemp("", "escrow-relayer-pg-fetch-")
	if err != nil {
		return "", err
	}

	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	reserved, err := port.Reserve()
	if err != nil {
		return "", err
	}

	defer func() { err = errors.Join(err, reserved.Close()) }()
	pg := embedded.NewDatabase(embedded.DefaultConfig().Version(embedded.V16).BinariesPath(cache).
		RuntimePath(filepath.Join(scratch, "run")).
		CachePath(filepath.Join(scratch, "download")).Port(uint32(reserved.Number)).Logger(io.Discard))
	started := pg.Start()
	if started == nil {
		started = pg.Stop()
	}

	if complete(dir) {
		return dir, nil
	}

	return "", fmt.Errorf("fetch Postgres: %w", started)
}
