package testchain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// installing lets one caller install while the others wait: a build of geth keeps two cores busy for minutes.
var installing sync.Mutex

// cached returns the path of a program in a folder of the user's cache, which install fills the
// first time. Several processes may do so at once: the folder appears complete, and the first
// stays.
func cached(ctx context.Context, name string, install func(dir string) error, program string) (path string, err error) {
	installing.Lock()
	defer installing.Unlock()
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache for %s: %w; set XDG_CACHE_HOME", name, err)
	}

	cache = filepath.Join(cache, "escrow-relayer")
	path = filepath.Join(cache, name, program)
	if _, err := exec.LookPath(path); err == nil {
		return path, nil
	}

	if err := errors.Join(ctx.Err(), os.MkdirAll(cache, 0o755)); err != nil {
		return "", fmt.Errorf("make the cache for %s: %w", name, err)
	}

	draft, err := os.MkdirTemp(cache, name+"-draft-")
	if err != nil {
		return "", fmt.Errorf("make the cache for %s: %w", name, err)
	}

	defer func() { err = errors.Join(err, os.RemoveAll(draft)) }()
	if err := install(draft); err != nil {
		return "", err
	}

	if _, err := exec.LookPath(filepath.Join(draft, program)); err != nil {
		return "", fmt.Errorf("install %s: %w", name, err)
	}

	if err := os.Rename(draft, filepath.Join(cache, name)); err != nil {
		if _, found := exec.LookPath(path); found != nil {
			return "", fmt.Errorf("keep %s: %w", name, err)
		}
	}

	return path, nil
}
