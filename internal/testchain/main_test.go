package testchain_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

func TestMain(m *testing.M) {
	if os.Getenv("TESTCHAIN_CHILD") != "" { // see TestNodeEndsWithItsProcess
		n, err := testchain.StartGeth(context.Background(), testchain.Options{})
		fmt.Println(n.HTTP(), err)
		_, _ = os.Stdin.Read(make([]byte, 1)) // until it is killed

		return
	}

	goleak.VerifyTestMain(m, testchain.IgnoreLeaks()...)
}
