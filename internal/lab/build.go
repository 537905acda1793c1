package lab

import (
	"context"
	"fmt"
	"os/exec"

	"github.com/fusion-prime/escrow-relayer/internal/race"
)

// Build builds a program of the repository, with the race detector where this process has it: the tests
// of a behaviour and the search for races do not pay for each other. folder is relative to the caller's.
func Build(ctx context.Context, folder, bin string) error {
	detector := fmt.Sprintf("-race=%t", race.Detector)
	if out, err := exec.CommandContext(ctx, "go", "build", detector, "-o", bin, folder).CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", folder, err, out)
	}

	return nil
}
