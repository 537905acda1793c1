package chain

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testchain.IgnoreLeaks()...) }
