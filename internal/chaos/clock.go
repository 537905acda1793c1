package chaos

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// clockVariable says by how many seconds the clock of a process is wrong. Only a binary of Build reads it.
const clockVariable = "CHAOS_CLOCK_ERROR"

// clockError is a file that an overlay adds to package time. It uses only what package time
// imports already: strconv is not among that.
const clockError = `package time

import "syscall"

var clockError = func() (n int64) {
	s, _ := syscall.Getenv("` + clockVariable + `")
	for _, c := range s {
		if c >= '0' && c <= '9' {
			n = n*10 + int64(c-'0')
		}
	}
	if s != "" && s[0] == '-' {
		n = -n
	}
	return n
}()
`

// Build builds the relayer for Run, with the race detector or without. Its clock can be wrong. The clock of a
// statically linked program cannot be changed from outside (it asks the kernel's vDSO, and no namespace
// changes that), so package time is changed at build time. The relayer's own code stays as it is.
func Build(ctx context.Context, dir, bin string, race bool) error {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("find the Go tree: %w", err)
	}

	src := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	original, err := os.ReadFile(filepath.Join(src, "time.go"))
	if err != nil {
		return err
	}

	const ask = "\tsec, nsec, mono := runtimeNow()\n"
	changed := strings.Replace(string(original), ask, ask+"\tsec += clockError\n", 1)
	if changed == string(original) {
		return fmt.Errorf("make a clock that can be wrong: package time of this Go does not read the clock as %q does",
			strings.TrimSpace(ask))
	}

	files := map[string]string{"time.go": changed, "clockerror.go": clockError}
	replace := map[string]string{}
	for name, text := range files {
		replace[filepath.Join(src, name)] = filepath.Join(dir, name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}

	if err := buildWith(ctx, filepath.Join(dir, "overlay.json"), replace, ".", bin, race); err != nil {
		return fmt.Errorf("build the relayer: %w", err)
	}

	return nil
}
