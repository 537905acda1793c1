package main

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestContainerMemory(t *testing.T) {
	for name, c := range map[string]struct {
		file, text string
		want       int64
	}{
		"version 2":           {"memory.max", "536870912\n", 512 << 20},
		"version 2, no limit": {"memory.max", "max\n", math.MaxInt64},
		"version 1":           {"memory/memory.limit_in_bytes", "268435456\n", 256 << 20},
		"version 1, no limit": {"memory/memory.limit_in_bytes", "9223372036854771712\n", math.MaxInt64},
		"neither":             {"other", "1", math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(c.file)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(root, c.file), []byte(c.text), 0o600))
			require.Equal(t, c.want, containerMemory(root))
		})
	}
}
